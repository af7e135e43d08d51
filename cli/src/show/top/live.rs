//! The table on a terminal, until its user quits.

use std::time::Duration;

use onelock::{Error, Locks, Release};
use tokio::signal::unix::{SignalKind, signal};
use tokio::task::JoinHandle;

use super::rows::Row;
use super::screen::Screen;
use super::view::{Action, View};
use super::{TopArgs, look};
use crate::exit::{Exit, Failure, Outcome};

/// A look after a pause; keys are heard meanwhile.
fn later(locks: &Locks, args: &TopArgs, pause: Duration) -> JoinHandle<Result<(usize, Vec<Row>), Error>> {
    let looking = look(locks.clone(), args.prefix.clone(), args.names);
    tokio::spawn(async move {
        tokio::time::sleep(pause).await;
        looking.await
    })
}

pub(super) async fn live(locks: &Locks, args: &TopArgs) -> Outcome {
    let listen = |kind| signal(kind).map_err(Failure::system("signals cannot be listened to"));
    let (mut term, mut hup) = (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    // Ctrl-C, too, while no key is read.
    let mut int = listen(SignalKind::interrupt())?;
    let mut resized = listen(SignalKind::window_change())?;
    let mut screen = Screen::open()?;
    let mut view = View::new(locks.info().address.clone(), args.sort, args.filter.clone());
    let mut looking = later(locks, args, Duration::ZERO);
    loop {
        let page = screen.draw(&mut view)?;
        tokio::select! {
            seen = &mut looking => {
                match seen.map_err(Failure::other)? {
                    Ok((names, rows)) => view.see(names, rows),
                    Err(error) if error.is_retryable() => view.away(&error),
                    Err(error) => return Err(error.into()),
                }
                looking = later(locks, args, args.interval);
            }
            key = screen.key() => {
                let Some(key) = key else { return Ok(Exit::OK) };
                match view.press(&key, page) {
                    Action::Nothing => {}
                    Action::Quit => return Ok(Exit::OK),
                    Action::Evict(name, token) => {
                        view.message = match locks.evict(&name, token).await {
                            Ok(Release::Released) => format!("evicted token {token} from {name}"),
                            Ok(Release::NotHeld) => format!("nobody has token {token} of {name} any more"),
                            Err(error) => error.to_string(),
                        };
                        looking.abort();
                        looking = later(locks, args, Duration::ZERO);
                    }
                }
                screen.ask();
            }
            _ = resized.recv() => {}
            _ = term.recv() => return Ok(Exit::killed_by(SignalKind::terminate().as_raw_value())),
            _ = int.recv() => return Ok(Exit::OK),
            _ = hup.recv() => return Ok(Exit::killed_by(SignalKind::hangup().as_raw_value())),
        }
    }
}
