//! The numbering of a fenced quorum as a model, searched in full: every order in which requests, answers, expiries and
//! losses can happen on three nodes. The protocol of `onelock_core::quorum` holds; its tempting variants are refuted, each
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

mod protocol;

use stateright::{Checker as _, Model as _};

use protocol::{Gate, Lift, Loss, MAJORITY, NODES, Protocol};

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
