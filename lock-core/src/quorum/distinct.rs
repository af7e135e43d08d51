//! Members that are one store under two addresses would lose two votes in one restart.
//!
//! So a member has a vote only once it is shown to differ from all that have one: a lock of a fresh random name is taken on
//! it, and must then be free on every other. This needs nothing of a store but locks. It does not see two databases, or
//! two prefixes, of one server.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::fanout::Answer;
use super::shared::Shared;
use super::votes::Distinct;
use crate::backend::{Backend, Note, Release, Request, Standing};
use crate::error::{Error, ErrorKind, Result};
use crate::holder::HolderId;
use crate::mode::Mode;
use crate::name::LockName;
use crate::token::TokenEpoch;

/// Long enough for all members to be asked, short enough for what a crash leaves. Its end is noticed.
const LEASE: Duration = Duration::from_secs(10);

impl Shared {
    /// Compares all members that can be asked now.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidConfig`] when two of them are one store.
    pub(super) async fn compare_all(self: &Arc<Self>) -> Result<()> {
        let one = |member| {
            let shared = Arc::clone(self);
            self.runtime.spawn(async move { shared.vote(member).await })
        };
        let compared: Vec<_> = (0..self.members.len()).map(one).collect();
        for member in compared {
            // What fails now (an unreachable member, a token epoch that is not known yet) is compared with the first verb.
            _ = member.await;
        }
        let refused =
            self.distinct.iter().flat_map(|distinct| &distinct.members).find_map(|m| m.refused.get());
        refused.map_or(Ok(()), |error| Err(error.clone()))
    }

    /// Whether this member has a vote; if that is not known yet, compares it with those that have one.
    pub(super) async fn vote(self: &Arc<Self>, member: usize) -> Result<()> {
        let Some(distinct) = &self.distinct else { return Ok(()) };
        if let Some(refused) = distinct.members[member].refused.get() {
            return Err(refused.clone());
        }
        if distinct.has_vote(member) {
            return Ok(());
        }
        // What fails here, fails before the verb.
        let compared = self.compare(distinct, member).await.map_err(Error::unsent)?;
        if let Some(same) = compared {
            let address = |member: usize| self.members[member].info().address;
            let (one, other) = (address(same), address(member));
            let text = format!("{one} and {other} are the same store: it would have two votes");
            let error = Error::new(ErrorKind::InvalidConfig, text);
            return Err(distinct.members[member].refused.get_or_init(|| error).clone());
        }
        Ok(())
    }

    /// The member that is the same store as this one; where there is none, this one has a vote now. A member that has a vote and
    /// does not answer loses it until it was compared in its turn.
    async fn compare(self: &Arc<Self>, distinct: &Distinct, member: usize) -> Result<Option<usize>> {
        let longest = self.capabilities.max_lease;
        let lease = self.capabilities.round_lease(LEASE.min(longest), longest)?;
        let request = Arc::new(
            Request::new(
                LockName::new(format!("onelock:member:{}", HolderId::random()?.to_hex()))?,
                HolderId::random()?,
                Mode::Exclusive,
                lease,
            )
            .queue(false)
            .note(Note::new("is this member a store of its own?")?)
            .epoch(TokenEpoch::new(self.epoch.load(Ordering::Acquire))?),
        );
        // Before the turn: a member that does not answer keeps no other waiting.
        match self.ask_some(&request, |i| i == member).await.swap_remove(member) {
            Some(Ok(Standing::Held(_))) => {}
            Some(Err(error)) => return Err(error),
            answer => {
                let text =
                    format!("this member answered {answer:?} when asked whether it is a store of its own");
                return Err(Error::new(ErrorKind::Unavailable, text).at(self.members[member].info().address));
            }
        }
        let _turn = distinct.turn.lock().await;
        let others = Arc::new(Request { holder: HolderId::random()?, ..(*request).clone() });
        let known = distinct.has_vote(member);
        let asked: Vec<_> =
            (0..self.members.len()).map(|i| !known && i != member && distinct.has_vote(i)).collect();
        let answers = self.ask_some(&others, |i| asked[i]).await;
        let mut same = None;
        for (other, answer) in answers.iter().enumerate().filter(|(other, _)| asked[*other]) {
            match answer {
                Some(Ok(Standing::Busy(_))) => same = Some(other),
                Some(Ok(_)) => self.give_back(other, others.ticket(), others.lease),
                None | Some(Err(_)) => distinct.members[other].given.store(false, Ordering::Release),
            }
        }
        // It was free elsewhere because another store has it, and not because it had ended: it is here until now.
        let mut entries = vec![None; self.members.len()];
        entries[member] = Some(request.ticket());
        let mut released = self.release(&entries, request.lease, 1).await;
        match released.swap_remove(member) {
            _ if same.is_some() => Ok(same),
            Some(Ok(Release::Released)) => {
                // In its turn, so that the next one is compared with it.
                distinct.members[member].given.store(true, Ordering::Release);
                Ok(None)
            }
            unclear => {
                let text = format!("this member could not be compared with the others: {unclear:?}");
                Err(Error::new(ErrorKind::Unavailable, text).at(self.members[member].info().address))
            }
        }
    }

    /// Asks some members for this lock; what comes late or unclear is given back.
    async fn ask_some(
        self: &Arc<Self>,
        request: &Arc<Request>,
        whom: impl Fn(usize) -> bool,
    ) -> Vec<Answer<Standing>> {
        let call = |i: usize, member: Arc<dyn Backend>| {
            let request = Arc::clone(request);
            whom(i).then_some(async move { member.acquire(&request).await })
        };
        let answers = self.ask_for(request, call, |_| false).await;
        self.give_back_unclear(request, &answers);
        answers
    }
}
