//! Requests among what an HTTP/2 client sends (RFC 9113, sections 3.4 and 4.1): it also sends pings, acknowledgements and
//! window updates, which nobody waits for.

/// What an HTTP/2 client says first.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
/// The length of a frame's header: three bytes of length, one of type, five more.
const HEADER: usize = 9;
/// The type of the frame that begins a request.
const HEADERS: u8 = 1;

/// Reads along with what a client sends.
#[derive(Debug)]
pub(super) enum Requests {
    /// So much of the preface has been seen.
    Greeting(usize),
    /// The header of a frame as far as it has been seen, behind so many bytes of the frame before.
    Framed { rest: usize, header: Vec<u8> },
    /// Something else, in which a request cannot be told from the rest.
    Other,
}

impl Requests {
    pub(super) fn new() -> Self {
        Self::Greeting(0)
    }

    /// Whether a request begins in these bytes; in another protocol every byte belongs to one.
    pub(super) fn begins_in(&mut self, mut bytes: &[u8]) -> bool {
        let mut begins = false;
        while let Some((&first, behind)) = bytes.split_first() {
            match self {
                Self::Other => return true,
                Self::Greeting(seen) => {
                    if PREFACE.get(*seen) != Some(&first) {
                        *self = Self::Other;
                        return true;
                    }
                    *seen += 1;
                    if *seen == PREFACE.len() {
                        *self = Self::Framed { rest: 0, header: Vec::new() };
                    }
                    bytes = behind;
                }
                Self::Framed { rest, .. } if *rest > 0 => {
                    let skipped = (*rest).min(bytes.len());
                    *rest -= skipped;
                    bytes = bytes.get(skipped..).unwrap_or_default();
                }
                Self::Framed { rest, header } => {
                    header.push(first);
                    bytes = behind;
                    if let ([a, b, c, kind, ..], HEADER) = (header.as_slice(), header.len()) {
                        begins |= *kind == HEADERS;
                        *rest = usize::from(*a) << 16 | usize::from(*b) << 8 | usize::from(*c);
                        header.clear();
                    }
                }
            }
        }
        begins
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, length: u8) -> Vec<u8> {
        let mut bytes = vec![0, 0, length, kind, 0, 0, 0, 0, 1];
        bytes.resize(HEADER + usize::from(length), HEADERS);
        bytes
    }

    #[test]
    fn a_request_is_told_from_what_keeps_a_connection() {
        let (settings, ping, request, data) = (frame(4, 6), frame(6, 8), frame(1, 200), frame(0, 40));
        let mut seen = Requests::new();
        assert!(!seen.begins_in(&[PREFACE, &settings].concat()));
        assert!(!seen.begins_in(&ping));
        assert!(seen.begins_in(&[&request[..], &data].concat()));
        assert!(!seen.begins_in(&ping));
    }

    #[test]
    fn frames_may_come_in_any_pieces() {
        let all = [PREFACE, &frame(4, 6), &frame(1, 200), &frame(0, 40), &frame(8, 4), &frame(1, 0)].concat();
        for size in 1..all.len() {
            let mut seen = Requests::new();
            let begun = all.chunks(size).filter(|piece| seen.begins_in(piece)).count();
            assert!((1..=2).contains(&begun), "in pieces of {size}: {begun}");
            assert!(size > 9 || begun == 2, "in pieces of {size}: {begun}");
        }
    }

    #[test]
    fn another_protocol_asks_with_every_byte() {
        let mut seen = Requests::new();
        assert!(seen.begins_in(b"PING\r\n") && seen.begins_in(b"x"));
    }
}
