//! The table: every mutant, what is wrong with it, and the cases that must name it.

use super::vehicle::Lock;
use super::{children, redlock, single};

/// A fault of a store that is right otherwise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// `release` frees the lock whoever holds it.
    ReleaseWithoutOwnerCheck,
    /// `release` says that it did and does nothing.
    ReleaseDoesNothing,
    /// `renew` answers for whoever holds.
    RenewWithoutOwnerCheck,
    /// `renew` puts an entry that is gone back.
    RenewRecreates,
    /// `renew` says yes without asking.
    RenewSkipped,
    /// `renew` gives up at the first entry that is gone.
    RenewStopsAtTheFirst,
    /// `renew` sets the lease, also to less.
    RenewShortens,
    /// A waiter that has renewed ends with the lease of that renewal, whatever it had before or renews later.
    RenewShortensWaiters,
    /// `renew` gives a shorter lease than it says.
    RenewTooShort,
    /// `renew` looks at one entry of each name.
    RenewByName,
    /// A renewal ends the lock-delay.
    RenewForgetsTheDelay,
    /// Asking again gives a new entry.
    AskingAgainIsNew,
    /// Asking again after the lease has ended gives the old number.
    OldNumberAfterExpiry,
    /// Numbers start again when the line is empty.
    TokensStartAgain,
    /// Numbers go down.
    TokensOfTheClient,
    /// The number is the time of the grant in milliseconds.
    TokensOfTheClock,
    /// A try that is busy joins the line.
    TryJoins,
    /// A try says that it is busy to one who waits in the line already.
    TryForgetsTheWaiter,
    /// A try looks at the holders only.
    TryPassesWaiters,
    /// Who joins goes to the front of the waiters.
    LastComeFirstServed,
    /// A reader is let in wherever readers hold.
    ReadersPassWriters,
    /// Shared entries are exclusive.
    NoSharing,
    /// Permits are not counted.
    PermitsNotCounted,
    /// Permits are counted, whatever they weigh.
    PermitsNotWeighed,
    /// Each permit counts by its own limit alone.
    LimitsNotCompared,
    /// A lease is shorter than what is said.
    LeaseTooShort,
    /// The lock-delay is forgotten.
    NoDelay,
    /// Who waits is kept without its lock-delay.
    NoDelayOfWaiters,
    /// Waiters stay for ever.
    WaitersStay,
    /// A wait hears only what comes after it has begun.
    EarlyWakeIsLost,
    /// Who waits looks at the one ahead, and not whether it is in the line itself.
    OnlyTheOneAheadCounts,
    /// Everybody is woken by every release.
    Herd,
    /// Nobody is ever woken.
    NoWake,
    /// `evict` does not look at the number.
    EvictAnything,
    /// `inspect` shows holder ids.
    ShowsHolderIds,
    /// `list` does not look at the prefix.
    ListsEverything,
    /// Names are compared without case.
    NamesFolded,
    /// Names are cut.
    NamesCut,
    /// All namespaces are one.
    OneNamespace,
    /// `raise` does not look at the entry.
    RaiseWithoutOwnerCheck,
    /// `raise` looks at the number, and not whose entry it is.
    RaiseByAnybody,
    /// `raise` does nothing.
    RaiseDoesNothing,
    /// `close` does nothing.
    CloseDoesNothing,
    /// Declares what it has not.
    DeclaresTooMuch,
}

/// Each of them, and the cases that must fail on it.
pub(crate) const WRAPPED: &[(Fault, &[&str])] = &[
    (Fault::ReleaseWithoutOwnerCheck, &["owner_only", "stale_handle"]),
    (Fault::ReleaseDoesNothing, &["basic_cycle", "no_residue"]),
    (Fault::RenewWithoutOwnerCheck, &["owner_only"]),
    (Fault::RenewRecreates, &["late_renew_revives_nothing"]),
    (Fault::RenewSkipped, &["renewal_keeps_the_lock", "renewal_is_kept_up"]),
    (Fault::RenewStopsAtTheFirst, &["renew_answers_each"]),
    (Fault::RenewShortens, &["renew_never_shortens"]),
    (Fault::RenewShortensWaiters, &["renew_never_shortens"]),
    (Fault::RenewTooShort, &["expiry_and_takeover"]),
    (Fault::RenewByName, &["renew_answers_each"]),
    (Fault::RenewForgetsTheDelay, &["lock_delay"]),
    (Fault::AskingAgainIsNew, &["acquire_is_idempotent"]),
    (Fault::OldNumberAfterExpiry, &["late_acquire_revives_nothing"]),
    (Fault::TokensStartAgain, &["tokens_grow"]),
    (Fault::TokensOfTheClient, &["tokens_grow_over_reconnect", "churn_exclusive"]),
    (Fault::TokensOfTheClock, &["tokens_grow_over_reconnect"]),
    (Fault::TryJoins, &["try_is_busy"]),
    (Fault::TryForgetsTheWaiter, &["acquire_is_idempotent"]),
    (Fault::TryPassesWaiters, &["unfair_never_passes_a_waiter"]),
    (Fault::LastComeFirstServed, &["fifo_order"]),
    (Fault::ReadersPassWriters, &["shared_admission", "random_lines_follow_the_specification"]),
    (Fault::NoSharing, &["shared_admission", "mixed_modes"]),
    (Fault::PermitsNotCounted, &["permit_admission"]),
    (Fault::PermitsNotWeighed, &["permit_weights", "random_lines_follow_the_specification"]),
    (Fault::LimitsNotCompared, &["permit_weights", "random_lines_follow_the_specification"]),
    (Fault::LeaseTooShort, &["expiry_and_takeover"]),
    (Fault::NoDelay, &["lock_delay"]),
    (Fault::NoDelayOfWaiters, &["lock_delay"]),
    (Fault::WaitersStay, &["dead_waiter_leaves_the_line", "promoted_waiter_keeps_its_waiter_lease"]),
    (Fault::EarlyWakeIsLost, &["early_wake_is_kept"]),
    (Fault::OnlyTheOneAheadCounts, &["evicted_waiter_never_holds"]),
    (Fault::Herd, &["only_the_promoted_are_woken"]),
    (Fault::NoWake, &["only_the_promoted_are_woken", "guard_cycle"]),
    (Fault::EvictAnything, &["evict_compares_the_token"]),
    (Fault::ShowsHolderIds, &["inspect_shows_the_line"]),
    (Fault::ListsEverything, &["list_by_prefix"]),
    (Fault::NamesFolded, &["hostile_names", "name_pairs_never_meet"]),
    (Fault::NamesCut, &["hostile_names"]),
    (Fault::OneNamespace, &["name_pairs_never_meet"]),
    (Fault::RaiseWithoutOwnerCheck, &["raise_while_ours"]),
    (Fault::RaiseByAnybody, &["raise_while_ours"]),
    (Fault::RaiseDoesNothing, &["raise_while_ours"]),
    (Fault::CloseDoesNothing, &["closed_backend_refuses"]),
    (Fault::DeclaresTooMuch, &["capabilities_are_as_declared"]),
];

/// A lock of the literature that is wrong, and the cases that must fail on it. The honest one of its kind must pass them.
pub(crate) const LITERATURE: &[(&str, Lock, &[&str])] = &[
    ("SetnxThenExpire", Lock::Single(single::Way::SetnxThenExpire), &["death_in_the_middle"]),
    (
        "DelWithoutOwnerCheck",
        Lock::Single(single::Way::DelWithoutOwnerCheck),
        &["owner_only", "stale_handle"],
    ),
    ("GetThenDel", Lock::Single(single::Way::GetThenDel), &["release_at_the_end_of_a_lease_hurts_nobody"]),
    ("GetSetWithClientClocks", Lock::Single(single::Way::GetSetWithClientClocks), &["try_is_busy"]),
    ("RowWithoutExpiry", Lock::Single(single::Way::RowWithoutExpiry), &["death_in_the_middle"]),
    ("ExpireWithoutOwnerCheck", Lock::Single(single::Way::ExpireWithoutOwnerCheck), &["owner_only"]),
    ("RenewBySet", Lock::Single(single::Way::RenewBySet), &["late_renew_revives_nothing"]),
    ("NumberOfTheClient", Lock::Single(single::Way::NumberOfTheClient), &["tokens_grow_over_reconnect"]),
    ("WatchParent", Lock::Children(children::Way::WatchParent), &["only_the_promoted_are_woken"]),
    (
        "NoLookAtItself",
        Lock::Children(children::Way::NoLookAtItself),
        &["dead_waiter_is_not_told_that_it_holds"],
    ),
    ("PersistentChildren", Lock::Children(children::Way::Persistent), &["death_in_the_middle"]),
    ("RedlockWithoutElapsedTime", Lock::Redlock(redlock::Way::NoLookAtTheTime), &["expiry_and_takeover"]),
    (
        "RedlockMajorityOfWhatItGot",
        Lock::Redlock(redlock::Way::MajorityOfWhatItGot),
        &["partition_ends_the_hold_in_time"],
    ),
];

impl Lock {
    /// The same built right.
    pub(crate) const fn honest(self) -> Self {
        match self {
            Self::Single(_) => Self::Single(single::Way::Honest),
            Self::Children(_) => Self::Children(children::Way::Honest),
            Self::Redlock(_) => Self::Redlock(redlock::Way::Honest),
        }
    }
}
