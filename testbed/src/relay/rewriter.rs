//! Changes the addresses that a server tells, so that a client which follows them stays on its way.

use std::sync::{Arc, OnceLock};

/// Which port of the loopback is told in place of which.
pub type Ports = Arc<OnceLock<Vec<(u16, u16)>>>;

/// The three ways in which Redis writes an address: in an error, as a text and a number, as two texts.
pub(super) fn rewrite(bytes: &mut Vec<u8>, ports: &[(u16, u16)]) {
    for before in ["127.0.0.1:", "127.0.0.1\r\n:", "127.0.0.1\r\n$5\r\n"] {
        let mut at = 0;
        while let Some(found) = bytes[at..].windows(before.len()).position(|part| part == before.as_bytes()) {
            at += found + before.len();
            // Ports as the kernel gives them have five digits all.
            let port =
                bytes.get(at..at + 5).and_then(|text| std::str::from_utf8(text).ok()?.parse::<u16>().ok());
            if let Some((_, told)) = ports.iter().find(|(real, _)| Some(*real) == port) {
                bytes.splice(at..at + 5, told.to_string().into_bytes());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_an_address_is_found() {
        let ports = [(40_001, 50_001), (40_002, 50_002)];
        let text = "-MOVED 1 127.0.0.1:40001\r\n$9\r\n127.0.0.1\r\n:40002\r\n$9\r\n127.0.0.1\r\n$5\r\n40001\r\n:40001\r\n127.0.0.1:9";
        let mut seen = text.as_bytes().to_vec();
        rewrite(&mut seen, &ports);
        let expected = "-MOVED 1 127.0.0.1:50001\r\n$9\r\n127.0.0.1\r\n:50002\r\n$9\r\n127.0.0.1\r\n$5\r\n50001\r\n:40001\r\n127.0.0.1:9";
        assert_eq!(String::from_utf8_lossy(&seen), expected);
    }
}
