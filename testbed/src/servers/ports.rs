//! Ports for servers. A port that is merely free now can be gone when the server binds it, and then a test talks to another
//! test's server; so each process takes a block of ports for itself and gives each of them out once.

use std::fs::{File, TryLockError};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::{Mutex, PoisonError};

use crate::verdict::{Context as _, Stop, Verdict};

/// Below the ports that the kernel gives to outgoing connections, so that none of those is in the way.
const FIRST: u16 = 10_240;
const BLOCK: u16 = 1_024;
const BLOCKS: u16 = 22;

struct Block {
    /// Locked for the life of this process.
    _lock: File,
    first: u16,
    given: u16,
}

static MINE: Mutex<Option<Block>> = Mutex::new(None);

/// A port of the loopback that nobody uses, and that no other call in any of our processes will get.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Verdict<u16> {
    let mut mine = MINE.lock().unwrap_or_else(PoisonError::into_inner);
    let block = match mine.as_mut() {
        Some(block) => block,
        None => mine.insert(take_block()?),
    };
    // A process that has used up its block begins anew: what it had first is long free.
    for _ in 0..BLOCK {
        let port = block.first + block.given;
        block.given = (block.given + 1) % BLOCK;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    Err(Stop::failed("every port of this process's block is in use"))
}

fn take_block() -> Verdict<Block> {
    let user = rustix::process::getuid().as_raw();
    let folder = std::env::temp_dir().join(format!("onelock-ports-{user}"));
    std::fs::create_dir_all(&folder).context("the folder of the port blocks")?;
    // Not all from the first: another user's blocks are not seen here.
    let start = u16::try_from(std::process::id() % u32::from(BLOCKS))?;
    for i in 0..BLOCKS {
        let number = (start + i) % BLOCKS;
        let lock = File::create(folder.join(number.to_string())).context("a port block")?;
        match lock.try_lock() {
            Ok(()) => return Ok(Block { _lock: lock, first: FIRST + number * BLOCK, given: 0 }),
            Err(TryLockError::WouldBlock) => {}
            Err(TryLockError::Error(error)) => return Err(error.into()),
        }
    }
    Err(Stop::failed("other test processes have taken all blocks of ports"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn no_port_is_given_twice_and_none_that_is_in_use() {
        let first = free_port().unwrap();
        let taken = TcpListener::bind((Ipv4Addr::LOCALHOST, first + 1));
        let mut ports: Vec<_> = (0..100).map(|_| free_port().unwrap()).collect();
        assert!(taken.is_err() || !ports.contains(&(first + 1)));
        ports.push(first);
        ports.sort_unstable();
        ports.dedup();
        assert_eq!(ports.len(), 101);
    }

    #[test]
    fn blocks_stay_below_the_ports_of_connections() {
        assert!(u32::from(FIRST) + u32::from(BLOCK) * u32::from(BLOCKS) <= 32_768);
    }
}
