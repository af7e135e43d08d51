//! The races of a guard — renewal, release, drop, loss, push, close — on every schedule that shuttle finds.
//!
//! It compiles the very source of the client's entry over shuttle's mutex. The threads below take the same steps, in the
//! same order, as the renewer, the guard and the acquire loop do around their calls to the store.
#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
#![allow(dead_code, unreachable_pub, unused_imports, reason = "the entry has more than these races need")]

mod backend {
    pub use onelock_core::backend::*;
}
mod clock {
    pub use onelock_core::clock::*;
}
mod error {
    pub use onelock_core::error::*;
}
mod lease {
    pub use onelock_core::lease::*;
}
mod mode {
    pub use onelock_core::mode::*;
}
mod token {
    pub use onelock_core::token::*;
}
mod model {
    pub mod loss {
        pub use onelock_core::LossReason;
    }
}
#[path = "../../src/client/entry/mod.rs"]
mod entry;
mod sync;
mod world;

use onelock_core::LossReason;
use shuttle::thread::spawn;
use world::{World, explore, join};

#[test]
fn a_renewal_and_a_release() {
    explore(|| {
        let world = World::held();
        let threads = [spawn(world.renewing()), spawn(world.releasing(true)), spawn(world.watching())];
        join(threads);
        world.given_back_once();
    });
}

#[test]
fn a_renewal_and_a_drop() {
    explore(|| {
        let world = World::held();
        join([spawn(world.renewing()), spawn(world.dropping()), spawn(world.watching())]);
        world.given_back_once();
    });
}

#[test]
fn a_renewal_a_release_and_a_close() {
    explore(|| {
        let world = World::held();
        join([spawn(world.renewing()), spawn(world.releasing(false)), spawn(world.closing())]);
        world.given_back_once();
    });
}

#[test]
fn the_deadline_passes_while_it_is_renewed_and_released() {
    explore(|| {
        let world = World::held();
        join([
            spawn(world.renewing()),
            spawn(world.time_passing()),
            spawn(world.releasing(false)),
            spawn(world.watching()),
            spawn(world.looking()),
        ]);
        world.given_back_once();
    });
}

#[test]
fn two_renewals_overtake_each_other_while_it_is_dropped() {
    explore(|| {
        let world = World::held();
        join([
            spawn(world.renewing()),
            spawn(world.renewing()),
            spawn(world.dropping()),
            spawn(world.looking()),
        ]);
        world.given_back_once();
    });
}

#[test]
fn an_eviction_is_heard_of_while_it_is_released() {
    explore(|| {
        let world = World::held();
        world.evict();
        join([spawn(world.renewing()), spawn(world.releasing(false)), spawn(world.watching())]);
        world.given_back_at_most_once();
    });
}

#[test]
fn a_push_and_a_drop() {
    explore(|| {
        let world = World::waiting();
        join([
            spawn(world.pushing()),
            spawn(world.dropping()),
            spawn(world.looking()),
            spawn(world.watching()),
        ]);
        world.given_back_once();
    });
}

#[test]
fn a_push_and_the_deadline() {
    explore(|| {
        let world = World::waiting();
        join([
            spawn(world.pushing()),
            spawn(world.time_passing()),
            spawn(world.renewing()),
            spawn(world.looking()),
            spawn(world.watching()),
        ]);
        world.over_at_last(&[LossReason::Expired]);
    });
}

#[test]
fn a_push_after_the_end_changes_nothing() {
    explore(|| {
        let world = World::waiting();
        join([spawn(world.dropping())]);
        join([spawn(world.pushing()), spawn(world.looking())]);
        assert!(!world.was_pushed(), "a push counted after the end");
        world.given_back_once();
    });
}
