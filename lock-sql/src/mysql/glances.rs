//! Tries: who was refused and asks again looks first. Most likely it is refused again, and a look is much less work and keeps nobody
//! else waiting.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use onelock_core::{Busy, Request, Result, Standing};

use super::link::{Lane, Link};
use super::look::room;
use super::rows;
use super::sql::Value;

/// How many names a client knows to be busy. When there are more it forgets them all, which costs it a look less or more.
const MANY: usize = 256;

/// The names whose locks this client tried last in vain.
#[derive(Debug, Default)]
pub(super) struct Glances {
    busy: Mutex<HashSet<String>>,
}

impl Glances {
    /// A refusal, if the last try was refused and a look is enough to see that this one is as well.
    pub(super) async fn refused(
        &self,
        link: &Link,
        name: &str,
        request: &Request,
    ) -> Result<Option<Standing>> {
        if request.queue || !self.lock().contains(name) {
            return Ok(None);
        }
        let (holder, mode) = (request.holder.as_u128().to_be_bytes(), request.mode.to_string());
        let values = [
            ("name", Value::Bytes(name.as_bytes())),
            ("holder", Value::Bytes(&holder)),
            ("mode", Value::Bytes(mode.as_bytes())),
            ("room", Value::Int(room(request.mode).into())),
        ];
        let sent = (&link.glance, &link.sql.glance);
        let retry_after = link.ask_often(Lane::Verb, sent, &values, |rows, _| rows::left_for(rows)).await?;
        if retry_after.is_none() {
            self.lock().remove(name);
        }
        Ok(retry_after.map(|left| Standing::Busy(Busy { retry_after: Some(left) })))
    }

    /// What the line said to a try.
    pub(super) fn told(&self, name: &str, standing: &Standing) {
        if let Standing::Busy(_) = standing {
            let mut busy = self.lock();
            if busy.len() >= MANY {
                busy.clear();
            }
            busy.insert(name.to_owned());
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<String>> {
        self.busy.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
