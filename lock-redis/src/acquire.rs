//! Acquire: joins the line of a name.

use std::sync::Arc;

use onelock_core::toolkit::Unanswered;
use onelock_core::{Error, ErrorKind, Renewal, Request, Result, Standing};

use crate::keys::Keys;
use crate::reply::{self, Answer};
use crate::topology::Servers;
use crate::{error, release};

/// One script. What too few replicas have is given back.
pub(crate) async fn acquire(
    servers: &Arc<Servers>,
    keys: &Keys,
    channel: &str,
    unanswered: &Unanswered,
    request: &Request,
) -> Result<Standing> {
    let asked = Renewal::new(request.ticket(), request.lease, request.waiter_lease);
    if keys.is_counter(&request.name) {
        return Err(Error::new(ErrorKind::InvalidName, "the counters of the plain layout are called so"));
    }
    let (line, script) = (keys.of(&request.name), keys.verbs().acquire);
    let mut command = script.call(&keys.voting(&line));
    reply::ask(&asked, &mut command);
    command.arg(request.mode.to_string()).arg(u8::from(request.queue));
    command.arg([channel, " ", request.note.as_str()].concat()).arg(u16::from(request.epoch));
    let answered = servers.call(line.slot(), script, &command).await;
    unanswered.acquired(request, &answered);
    let Answer { value, short } = answered?;
    let standing = reply::standing(error::sound(value)?, &asked)?;
    match (standing, short) {
        (Standing::Busy(_), _) | (_, None) => Ok(standing),
        (_, Some(replicas)) => {
            // Whether or not this arrives, the error tells the caller that something may be left.
            let _ = Box::pin(release::release(servers, keys, &request.ticket())).await;
            Err(error::too_few(replicas))
        }
    }
}
