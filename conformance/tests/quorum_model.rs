//! The numbering of a fenced quorum as a model, searched in full: every order in which requests, answers, expiries and
//! losses can happen on three nodes. The protocol of `lock_core::quorum` holds; its tempting variants are refuted, each
//! in a test of its own:
//!
//! | variant | expected |
//! |---|---|
//! | lift the counters of any majority | wrong; with entries that end early a token comes twice |
//! | lift those that granted, without looking whether the entry is still there | wrong when an entry ends early |
//! | lift nothing: the largest number is the token | wrong |
//! | half of the members are enough | wrong |
//! | ask a member again under the same holder id | wrong when an entry ends early |
//! | lift those that granted, each while the entry is ours | holds, whatever the clocks do |
//! | the same, a node loses its entry and keeps its counter | holds |
//! | the same, a node loses both | wrong |
//! | the same with a gate: no vote until a majority of others has told its numbers | wrong |
//! | the same with a gate, and only when no attempt is left that counts on the lost grant (quarantine) | holds |
//!
//! The model is of tokens alone. It has no clock: an entry may end at any time, as if every clock were wrong.

#![allow(clippy::unwrap_used, clippy::panic)]

use stateright::{Checker, Model, Property};

const NODES: usize = 3;
const MAJORITY: usize = 2;

/// Which counters an attempt lifts to its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lift {
    /// None.
    Nothing,
    /// Those of any majority.
    AnyMajority,
    /// Those of members that granted.
    Granted,
    /// Those of members that granted, each only while the entry there is still this attempt's: the protocol.
    GrantedAndOurs,
}

/// What a node forgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Loss {
    Entry,
    EntryAndCounter,
}

/// What happens to a node that has forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Gate {
    /// Nothing: it goes on.
    None,
    /// It has no vote until its counter is lifted over those of a majority of other nodes that have theirs.
    Repaired,
    /// The same, and no attempt may be left that counts on a grant of before.
    Quarantined,
}

#[derive(Clone, Debug)]
struct Protocol {
    lift: Lift,
    /// Where the counters begin: an ordinary history leaves them apart.
    counters: [u8; NODES],
    clients: usize,
    /// An entry may end before its time.
    expiry: bool,
    /// How many times a node may forget.
    losses: u8,
    loss: Loss,
    gate: Gate,
    /// How many requests for an entry may arrive a second time.
    repeats: u8,
    /// How many members are enough.
    enough: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Node {
    owner: Option<usize>,
    counter: u8,
    shut: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Idle,
    Asking,
    Lifting(u8),
    Held,
    Over,
}

/// One message between a client and a node, and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Mail<Q, A> {
    #[default]
    None,
    Sent(Q),
    Answered(A),
    Read(A),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    /// The largest token that somebody had when this attempt began.
    floor: u8,
    asks: [Mail<(), Option<u8>>; NODES],
    lifts: [Mail<u8, bool>; NODES],
    /// Releases on their way.
    frees: [bool; NODES],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct State {
    nodes: [Node; NODES],
    clients: Vec<Client>,
    losses: u8,
    repeats: u8,
    /// Tokens of successful attempts, sorted.
    tokens: Vec<u8>,
    /// The largest token of a holder that has released: every later holder must be above it. Without meaning where
    /// entries end early, because then holders overlap.
    released: u8,
    wrong: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Event {
    Start(usize),
    AskArrives(usize, usize),
    AskRepeats(usize, usize),
    AnswerIsRead(usize, usize),
    Counted(usize),
    LiftArrives(usize, usize),
    LiftIsRead(usize, usize),
    Succeeds(usize),
    Releases(usize),
    FreeArrives(usize, usize),
    Expires(usize),
    Forgets(usize),
    Opens(usize),
}

impl Client {
    fn grants(&self) -> impl Iterator<Item = (usize, u8)> {
        self.asks.iter().enumerate().filter_map(|(i, mail)| match mail {
            Mail::Read(Some(number)) => Some((i, *number)),
            _ => None,
        })
    }

    /// How many members are at the token as far as this client knows.
    fn at(&self, token: u8) -> usize {
        let lifted = |i: &usize| self.lifts[*i] == Mail::Read(true);
        let counted = |i: &usize| self.asks[*i] == Mail::Read(Some(token));
        (0..NODES).filter(|i| lifted(i) || counted(i)).count()
    }

    /// Whether this attempt may yet count a grant of this node.
    fn counts_on(&self, node: usize) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Lifting(_))
            && matches!(self.asks[node], Mail::Answered(Some(_)) | Mail::Read(Some(_)))
    }
}

impl Protocol {
    fn may_open(&self, state: &State, node: usize) -> bool {
        let others = (0..NODES).filter(|other| *other != node && !state.nodes[*other].shut).count();
        let quiet = self.gate == Gate::Repaired || !state.clients.iter().any(|client| client.counts_on(node));
        state.nodes[node].shut && others >= MAJORITY && quiet
    }

    fn succeed(&self, state: &mut State, client: usize, token: u8) {
        if state.tokens.contains(&token) {
            state.wrong = Some("a token was given twice");
        } else if token <= state.clients[client].floor {
            state.wrong = Some("a token is below one that was out when its attempt began");
        } else if token <= state.released {
            state.wrong = Some("a token is below that of an earlier holder");
        }
        state.tokens.push(token);
        state.tokens.sort_unstable();
        state.clients[client].phase = Phase::Held;
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Event;

    fn init_states(&self) -> Vec<State> {
        let nodes = self.counters.map(|counter| Node { owner: None, counter, shut: false });
        let clients = vec![Client::default(); self.clients];
        vec![State { nodes, clients, losses: 0, repeats: 0, tokens: Vec::new(), released: 0, wrong: None }]
    }

    fn actions(&self, state: &State, events: &mut Vec<Event>) {
        if state.wrong.is_some() {
            return;
        }
        for (c, client) in state.clients.iter().enumerate() {
            match client.phase {
                Phase::Idle => events.push(Event::Start(c)),
                Phase::Asking if client.grants().count() >= self.enough => events.push(Event::Counted(c)),
                Phase::Lifting(token) if self.lift == Lift::Nothing || client.at(token) >= self.enough => {
                    events.push(Event::Succeeds(c));
                }
                // Where entries end at any time a release adds nothing but states.
                Phase::Held if !self.expiry => events.push(Event::Releases(c)),
                _ => {}
            }
            for n in 0..NODES {
                match client.asks[n] {
                    Mail::Sent(()) => events.push(Event::AskArrives(c, n)),
                    Mail::Answered(_) if client.phase == Phase::Asking => {
                        events.push(Event::AnswerIsRead(c, n));
                    }
                    _ => {}
                }
                if state.repeats < self.repeats && matches!(client.asks[n], Mail::Answered(_) | Mail::Read(_))
                {
                    events.push(Event::AskRepeats(c, n));
                }
                match client.lifts[n] {
                    Mail::Sent(_) => events.push(Event::LiftArrives(c, n)),
                    Mail::Answered(_) if matches!(client.phase, Phase::Lifting(_)) => {
                        events.push(Event::LiftIsRead(c, n));
                    }
                    _ => {}
                }
                if client.frees[n] {
                    events.push(Event::FreeArrives(c, n));
                }
            }
        }
        for (n, node) in state.nodes.iter().enumerate() {
            if self.expiry && node.owner.is_some() {
                events.push(Event::Expires(n));
            }
            if state.losses < self.losses {
                events.push(Event::Forgets(n));
            }
            if self.may_open(state, n) {
                events.push(Event::Opens(n));
            }
        }
    }

    fn next_state(&self, state: &State, event: Event) -> Option<State> {
        let mut next = state.clone();
        match event {
            Event::Start(c) => {
                let client = &mut next.clients[c];
                client.phase = Phase::Asking;
                client.floor = next.tokens.last().copied().unwrap_or(0);
                client.asks = [Mail::Sent(()); NODES];
            }
            Event::AskArrives(c, n) => {
                let node = &mut next.nodes[n];
                let number = (node.owner.is_none() && !node.shut).then(|| {
                    node.owner = Some(c);
                    node.counter += 1;
                    node.counter
                });
                next.clients[c].asks[n] = Mail::Answered(number);
            }
            Event::AskRepeats(c, n) => {
                // The client has an answer and looks at no other.
                let node = &mut next.nodes[n];
                if node.owner.is_some() || node.shut {
                    return None;
                }
                next.repeats += 1;
                node.owner = Some(c);
                node.counter += 1;
            }
            Event::AnswerIsRead(c, n) => {
                let Mail::Answered(number) = next.clients[c].asks[n] else { return None };
                next.clients[c].asks[n] = Mail::Read(number);
            }
            Event::Counted(c) => {
                let client = &mut next.clients[c];
                let token = client.grants().map(|(_, number)| number).max()?;
                client.phase = Phase::Lifting(token);
                for n in 0..NODES {
                    let wanted = match client.asks[n] {
                        _ if self.lift == Lift::Nothing => false,
                        Mail::Read(Some(number)) => number < token,
                        _ => self.lift == Lift::AnyMajority,
                    };
                    if wanted {
                        client.lifts[n] = Mail::Sent(token);
                    }
                }
            }
            Event::LiftArrives(c, n) => {
                let Mail::Sent(token) = next.clients[c].lifts[n] else { return None };
                let ours = self.lift != Lift::GrantedAndOurs || next.nodes[n].owner == Some(c);
                let done = ours && !next.nodes[n].shut;
                if done {
                    next.nodes[n].counter = next.nodes[n].counter.max(token);
                }
                next.clients[c].lifts[n] = Mail::Answered(done);
            }
            Event::LiftIsRead(c, n) => {
                let Mail::Answered(done) = next.clients[c].lifts[n] else { return None };
                next.clients[c].lifts[n] = Mail::Read(done);
            }
            Event::Succeeds(c) => {
                let Phase::Lifting(token) = next.clients[c].phase else { return None };
                self.succeed(&mut next, c, token);
            }
            Event::Releases(c) => {
                if !self.expiry && self.losses == 0 {
                    next.released = next.tokens.last().copied().unwrap_or(0);
                }
                next.clients[c].phase = Phase::Over;
                next.clients[c].frees = [true; NODES];
            }
            Event::FreeArrives(c, n) => {
                next.clients[c].frees[n] = false;
                if next.nodes[n].owner == Some(c) {
                    next.nodes[n].owner = None;
                }
            }
            Event::Expires(n) => next.nodes[n].owner = None,
            Event::Forgets(n) => {
                next.losses += 1;
                let node = &mut next.nodes[n];
                node.owner = None;
                node.shut = self.gate != Gate::None;
                if self.loss == Loss::EntryAndCounter {
                    node.counter = self.counters[n];
                }
            }
            Event::Opens(n) => {
                let others = next.nodes.iter().enumerate().filter(|(other, node)| *other != n && !node.shut);
                let floor = others.map(|(_, node)| node.counter).max()?;
                let node = &mut next.nodes[n];
                (node.counter, node.shut) = (node.counter.max(floor), false);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always("tokens differ and grow", |_, state: &State| state.wrong.is_none()),
            Property::sometimes("two attempts succeed", |_, state: &State| state.tokens.len() >= 2),
        ]
    }
}

fn two_clients(lift: Lift, counters: [u8; NODES]) -> Protocol {
    Protocol {
        lift,
        counters,
        clients: 2,
        expiry: false,
        losses: 0,
        loss: Loss::EntryAndCounter,
        gate: Gate::None,
        repeats: 0,
        enough: MAJORITY,
    }
}

/// Searches all of it, or as many states as said; what goes wrong, if anything does.
fn search(protocol: Protocol) -> Option<&'static str> {
    search_up_to(protocol, usize::MAX)
}

fn search_up_to(protocol: Protocol, states: usize) -> Option<&'static str> {
    let text = format!("{protocol:?}");
    // Depth first: a search that is cut off has yet seen attempts to their end.
    let checker = protocol.checker().threads(2).target_state_count(states).spawn_dfs().join();
    assert!(checker.discovery("two attempts succeed").is_some(), "{text}: the search proves nothing");
    let wrong = checker.discovery("tokens differ and grow").and_then(|path| path.last_state().wrong);
    println!("{} states, {wrong:?}: {text}", checker.unique_state_count());
    wrong
}

const STARTS: [[u8; NODES]; 3] = [[2, 0, 0], [0, 0, 0], [2, 1, 0]];

fn refuted(protocol: &Protocol) -> bool {
    STARTS.iter().any(|counters| search(Protocol { counters: *counters, ..protocol.clone() }).is_some())
}

#[test]
fn the_protocol_holds_from_any_start() {
    for counters in STARTS {
        assert_eq!(search(two_clients(Lift::GrantedAndOurs, counters)), None);
    }
}

#[test]
fn the_protocol_holds_for_three_clients() {
    let protocol = Protocol { clients: 3, ..two_clients(Lift::GrantedAndOurs, [2, 0, 0]) };
    assert_eq!(search_up_to(protocol, states(150_000)), None);
}

#[test]
fn lifting_nothing_is_wrong() {
    assert!(refuted(&two_clients(Lift::Nothing, [0, 0, 0])));
}

#[test]
fn half_of_the_members_are_not_enough() {
    assert!(refuted(&Protocol { enough: NODES / 2, ..two_clients(Lift::GrantedAndOurs, [0, 0, 0]) }));
}

#[test]
fn lifting_a_majority_that_did_not_grant_is_wrong() {
    assert!(search(two_clients(Lift::AnyMajority, [2, 0, 0])).is_some());
    let protocol = Protocol { expiry: true, ..two_clients(Lift::AnyMajority, [2, 1, 0]) };
    assert_eq!(search(protocol), Some("a token was given twice"));
}

#[test]
fn lifting_without_looking_is_wrong_when_an_entry_ends_early() {
    assert_eq!(search(two_clients(Lift::Granted, [2, 1, 0])), None, "without expiry it holds");
    let protocol = Protocol { expiry: true, ..two_clients(Lift::Granted, [2, 1, 0]) };
    assert!(search(protocol).is_some());
}

#[test]
fn asking_again_under_the_same_holder_is_wrong_when_an_entry_ends_early() {
    let protocol = Protocol { expiry: true, repeats: 1, ..two_clients(Lift::GrantedAndOurs, [2, 1, 0]) };
    assert!(search(protocol).is_some());
}

#[test]
fn a_node_may_forget_its_entry_but_not_its_counter() {
    for counters in STARTS {
        let protocol =
            Protocol { losses: 1, loss: Loss::Entry, ..two_clients(Lift::GrantedAndOurs, counters) };
        assert_eq!(search_up_to(protocol, states(150_000)), None);
    }
    assert!(refuted(&Protocol { losses: 1, ..two_clients(Lift::GrantedAndOurs, [2, 0, 0]) }));
}

#[test]
fn a_gate_without_quarantine_is_wrong() {
    let gate = Gate::Repaired;
    assert!(refuted(&Protocol { losses: 1, gate, ..two_clients(Lift::GrantedAndOurs, [2, 0, 0]) }));
}

#[test]
fn a_gate_with_quarantine_holds() {
    for counters in STARTS {
        let gate = Gate::Quarantined;
        let protocol = Protocol { losses: 1, gate, ..two_clients(Lift::GrantedAndOurs, counters) };
        assert_eq!(search_up_to(protocol.clone(), states(60_000)), None);
        assert_eq!(search_up_to(Protocol { losses: 2, ..protocol }, states(60_000)), None);
    }
}

/// The whole of the largest searches only with `ONELOCK_VOLUME` above 1: millions of states.
fn states(at_first: usize) -> usize {
    let volume = std::env::var("ONELOCK_VOLUME").map_or(1, |text| text.parse().unwrap());
    if volume > 1 { usize::MAX } else { at_first }
}

/// Every entry may end at any time.
#[test]
fn the_protocol_holds_whatever_the_clocks_do() {
    for counters in [[2, 1, 0], [2, 0, 0]] {
        let protocol = Protocol { expiry: true, ..two_clients(Lift::GrantedAndOurs, counters) };
        assert_eq!(search_up_to(protocol, states(250_000)), None);
    }
}
