//! Acquire: joins the line of a name.

use onelock_core::{Request, Result, Standing};

use super::thread::{Effect, Queue};

pub(super) async fn acquire(queue: &Queue, request: &Request) -> Result<Standing> {
    let request = request.clone();
    let join = queue.run(Effect::Joins, move |tx| {
        tx.delays.insert(request.holder, request.delay);
        tx.step(&request.name, |lines, now| lines.acquire(now, &request))
    });
    join.await?
}
