//! An interactive shell on a terminal of its own.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};

use super::{Bench, until};

/// Bash in the foreground of a pseudo-terminal; it ends when this is dropped.
pub struct Terminal {
    master: File,
    shown: Arc<Mutex<String>>,
    shell: Child,
}

impl Terminal {
    pub fn open(bench: &Bench) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let own = || ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        let shell = Command::new("env")
            .args(["--default-signal", "setsid", "--ctty", "bash", "--norc", "--noprofile", "-i"])
            .envs([("TERM", "dumb"), ("PS1", "$ "), ("INPUTRC", "/dev/null")])
            .env_remove("PROMPT_COMMAND")
            .env("ONELOCK", env!("CARGO_BIN_EXE_onelock"))
            .env("ONELOCK_STORE", &bench.url)
            .env("HIST", bench.history_file())
            .stdin(Stdio::from(own()))
            .stdout(Stdio::from(own()))
            .stderr(Stdio::from(own()))
            .spawn()
            .unwrap();
        let shown = Arc::new(Mutex::new(String::new()));
        let (mut reader, text) = (File::from(master.try_clone().unwrap()), Arc::clone(&shown));
        std::thread::spawn(move || {
            let mut bytes = [0; 4096];
            // An error: nobody has the other side open any more.
            while let Ok(read @ 1..) = reader.read(&mut bytes) {
                let piece = String::from_utf8_lossy(&bytes[..read]);
                text.lock().unwrap_or_else(PoisonError::into_inner).push_str(&piece);
            }
        });
        Self { master: master.into(), shown, shell }
    }

    /// As a person at the keyboard.
    pub fn types(&mut self, text: &str) {
        self.master.write_all(text.as_bytes()).unwrap();
    }

    /// What was shown so far.
    pub fn shown(&self) -> String {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub fn wait_for(&self, text: &str) {
        until(&format!("`{text}` on the terminal"), || self.shown().contains(text));
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("the terminal shows: {}", self.shown());
        }
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}
