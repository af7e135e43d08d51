//! Changes the addresses that a server tells, so that a client which follows them stays on its way.

/// The three ways in which Redis writes an address: in an error, as a text and a number, as two texts.
pub fn rewrite(bytes: &mut Vec<u8>, ports: &[(u16, u16)]) {
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
