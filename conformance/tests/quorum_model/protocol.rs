//! The protocol and its variants: what clients, nodes and the network between them can do.

use stateright::{Model, Property};

pub(crate) const NODES: usize = 3;
pub(crate) const MAJORITY: usize = 2;

/// Which counters an attempt lifts to its token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lift {
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
pub(crate) enum Loss {
    Entry,
    EntryAndCounter,
}

/// What happens to a node that has forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Gate {
    /// Nothing: it goes on.
    None,
    /// It has no vote until its counter is lifted over those of a majority of other nodes that have theirs.
    Repaired,
    /// The same, and no attempt may be left that counts on a grant of before.
    Quarantined,
}

#[derive(Clone, Debug)]
pub(crate) struct Protocol {
    pub(crate) lift: Lift,
    /// Where the counters begin: an ordinary history leaves them apart.
    pub(crate) counters: [u8; NODES],
    pub(crate) clients: usize,
    /// An entry may end before its time.
    pub(crate) expiry: bool,
    /// How many times a node may forget.
    pub(crate) losses: u8,
    pub(crate) loss: Loss,
    pub(crate) gate: Gate,
    /// How many requests for an entry may arrive a second time.
    pub(crate) repeats: u8,
    /// How many members are enough.
    pub(crate) enough: usize,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Node {
    owner: Option<usize>,
    counter: u8,
    shut: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    #[default]
    Idle,
    Asking,
    Lifting(u8),
    Held,
    Over,
}

/// One message between a client and a node, and where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Mail<Q, A> {
    #[default]
    None,
    Sent(Q),
    Answered(A),
    Read(A),
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Client {
    phase: Phase,
    /// The largest token that somebody had when this attempt began.
    floor: u8,
    asks: [Mail<(), Option<u8>>; NODES],
    lifts: [Mail<u8, bool>; NODES],
    /// Releases on their way.
    frees: [bool; NODES],
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    nodes: [Node; NODES],
    clients: Vec<Client>,
    losses: u8,
    repeats: u8,
    /// Tokens of successful attempts, sorted.
    tokens: Vec<u8>,
    /// The largest token of a holder that has released: every later holder must be above it. Without meaning where
    /// entries end early, because then holders overlap.
    released: u8,
    pub(crate) wrong: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Event {
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
