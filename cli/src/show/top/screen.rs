//! The terminal of `top`: as it was, when this is dropped.

use std::fmt::Write as _;
use std::io::{self, ErrorKind};

use console::{Key, Term};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::sync::mpsc;

use super::view::View;

/// The alternate screen, without a cursor; and back.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

pub(super) struct Screen {
    term: Term,
    modes: Termios,
    keys: mpsc::UnboundedReceiver<Key>,
    /// Asks for the next key: the terminal is raw only while one is waited for.
    next: std::sync::mpsc::Sender<()>,
}

impl Screen {
    pub(super) fn open() -> io::Result<Self> {
        let modes = tcgetattr(io::stdin())?;
        let (sender, keys) = mpsc::unbounded_channel();
        let (next, asked) = std::sync::mpsc::channel();
        // It ends with the process, or with the terminal.
        std::thread::spawn(move || {
            let term = Term::stdout();
            while asked.recv().is_ok() {
                let key = match term.read_key_raw() {
                    Err(error) if error.kind() == ErrorKind::Interrupted => Key::CtrlC,
                    Err(_) => return,
                    Ok(key) => key,
                };
                if sender.send(key).is_err() {
                    return;
                }
            }
        });
        let screen = Self { term: Term::stdout(), modes, keys, next };
        screen.term.write_str(ENTER)?;
        screen.ask();
        Ok(screen)
    }

    /// Has the next key read.
    pub(super) fn ask(&self) {
        // Without the thread there are no keys, which ends the program.
        let _ = self.next.send(());
    }

    /// The key that was asked for; `None` when the terminal is gone.
    ///
    /// # Cancel safety
    /// Safe.
    pub(super) async fn key(&mut self) -> Option<Key> {
        self.keys.recv().await
    }

    /// Shows it, and says how many rows are on a page.
    pub(super) fn draw(&self, view: &mut View) -> io::Result<usize> {
        let (height, width) = self.term.size();
        let (lines, selected) = view.draw(width.into(), height.into());
        let mut frame = String::new();
        for (at, line) in lines.iter().enumerate() {
            let style = match at {
                1 => "\x1b[1m",
                at if Some(at) == selected => "\x1b[7m",
                _ => "",
            };
            // Writing to a string cannot fail.
            let _ = write!(frame, "\x1b[{};1H{style}{line}\x1b[0m", at + 1);
        }
        self.term.write_str(&frame)?;
        Ok(usize::from(height).saturating_sub(3).max(1))
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = self.term.write_str(LEAVE);
        let _ = tcsetattr(io::stdin(), OptionalActions::Drain, &self.modes);
    }
}
