//! Spoils what a server says, from a seed.

use crate::rng::Rng;

/// How many earlier pieces are kept to be said again.
const REMEMBERED: usize = 16;

/// Longer pieces are not kept.
const LONGEST: usize = 4096;

/// Numbers that break what takes them for a length, a count, an index or a time.
const NUMBERS: [&str; 8] = [
    "-1",
    "0",
    "999999999",
    "2147483647",
    "4294967295",
    "9223372036854775807",
    "18446744073709551616",
    "1000000000000000000000000000000",
];

/// The same in binary, in the byte order of networks.
const WORDS: [[u8; 4]; 6] = [
    [0, 0, 0, 0],
    [0x3b, 0x9a, 0xca, 0x00],
    [0x7f, 0xff, 0xff, 0xff],
    [0x80, 0, 0, 0],
    [0xff, 0xff, 0xff, 0xff],
    [0, 0, 0x40, 0],
];

/// What tells types apart in the protocols that are spoken here, and some that do in none.
const MARKERS: &[u8] = b"+-:$*_,#!=%~>|({ZRCDTEKSNVtbs123nAGI\0\x01\x02\xfa\xfb\xfc\xfe\xff";

/// Alters pieces of a stream.
#[derive(Debug)]
pub(super) struct Corruptor {
    rng: Rng,
    before: Vec<Vec<u8>>,
}

impl Corruptor {
    pub(super) fn new(seed: u64) -> Self {
        Self { rng: Rng::new(seed), before: Vec::new() }
    }

    /// Alters two pieces of three: some must get through, or a client never gets beyond its first request. What became of it, and
    /// whether the connection ends behind it.
    pub(super) fn mangle(&mut self, piece: &[u8]) -> (Vec<u8>, bool) {
        let rng = &mut self.rng;
        let (mut bytes, mut ends) = (piece.to_vec(), false);
        if rng.below(3) > 0 {
            for _ in 0..=rng.below(2) {
                ends |= alter(rng, &mut bytes, &self.before);
            }
        }
        if piece.len() <= LONGEST {
            if self.before.len() == REMEMBERED {
                let old = rng.index(REMEMBERED);
                self.before.swap_remove(old);
            }
            self.before.push(piece.to_vec());
        }
        (bytes, ends)
    }
}

/// One alteration; whether the connection ends with it.
fn alter(rng: &mut Rng, bytes: &mut Vec<u8>, before: &[Vec<u8>]) -> bool {
    let at = rng.index(bytes.len());
    match rng.below(11) {
        // A flipped bit.
        0 => change(bytes, at, |byte| byte ^ (1 << rng.below(8))),
        // Another byte.
        1 => change(bytes, at, |_| rng.bits().to_be_bytes()[0]),
        // Cut: the rest never comes, or the connection ends.
        2 => {
            bytes.truncate(at);
            return rng.below(4) > 0;
        }
        // Said twice.
        3 => bytes.extend_from_within(..),
        // In another order.
        4 => bytes.rotate_left(at),
        // Garbage in between.
        5 => {
            let garbage: Vec<u8> = (0..=rng.below(64)).map(|_| rng.bits().to_be_bytes()[0]).collect();
            bytes.splice(at..at, garbage);
        }
        // Another number where there is one in digits.
        6 => {
            let starts =
                |i: &usize| bytes[*i].is_ascii_digit() && (*i == 0 || !bytes[i - 1].is_ascii_digit());
            let numbers: Vec<usize> = (0..bytes.len()).filter(starts).collect();
            if let Some(&start) = numbers.get(rng.index(numbers.len())) {
                let size = bytes[start..].iter().take_while(|byte| byte.is_ascii_digit()).count();
                bytes.splice(start..start + size, NUMBERS[rng.index(NUMBERS.len())].bytes());
            }
        }
        // Another number where there may be one in binary; lengths stand in front.
        7 => {
            let at = if rng.below(2) == 0 { at } else { rng.index(at.min(8)) };
            let word = WORDS[rng.index(WORDS.len())];
            let word = &word[rng.index(word.len())..];
            let end = bytes.len().min(at + word.len());
            bytes.splice(at.min(end)..end, word.iter().copied());
        }
        // Another type, at the start or behind a line's end.
        8 => {
            let lines = (0..bytes.len()).filter(|i| *i == 0 || bytes[i - 1] == b'\n').collect::<Vec<_>>();
            let at = lines.get(rng.index(lines.len())).copied().unwrap_or(0);
            change(bytes, at, |_| MARKERS[rng.index(MARKERS.len())]);
        }
        // What was said before, to another question, comes first or in its place.
        9 => {
            if let Some(old) = before.get(rng.index(before.len())) {
                let end = if rng.below(2) == 0 { 0 } else { bytes.len() };
                bytes.splice(..end, old.iter().copied());
            }
        }
        // Nothing but garbage.
        _ => bytes.iter_mut().for_each(|byte| *byte = rng.bits().to_be_bytes()[0]),
    }
    false
}

fn change(bytes: &mut [u8], at: usize, to: impl FnOnce(u8) -> u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = to(*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_replays_and_alters_most_pieces_in_many_ways() {
        let piece = |n: u64| format!("*3\r\n:1\r\n:{n}\r\n$5\r\nabcde\r\n").into_bytes();
        let run = |seed| {
            let mut corruptor = Corruptor::new(seed);
            let mangled = (0..3_000).map(|n| (corruptor.mangle(&piece(n)), piece(n)));
            mangled.map(|((bytes, ends), piece)| (bytes.clone(), ends || bytes != piece)).collect::<Vec<_>>()
        };
        let (first, again, other) = (run(7), run(7), run(8));
        assert_eq!(first, again);
        assert_ne!(first, other);
        let altered = first.iter().filter(|(_, altered)| *altered).count();
        assert!((1_500..2_500).contains(&altered), "{altered} of 3000 are altered");
        // Each kind shows: longer, shorter, the same length, a huge number, an earlier answer.
        let base = |n: u64| piece(n).len();
        let any = |pick: &dyn Fn(u64, &[u8]) -> bool| (0..).zip(&first).any(|(n, (bytes, _))| pick(n, bytes));
        let holds = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
        assert!(any(&|n, bytes| bytes.len() == 2 * base(n)), "said twice");
        assert!(any(&|n, bytes| bytes.len() < base(n)), "cut");
        assert!(any(&|_, bytes| holds(bytes, b"9223372036854775807")), "a huge number");
        assert!(any(&|n, bytes| n > 1 && holds(bytes, &piece(n - 1))), "an earlier answer");
        assert!(
            any(&|_, bytes| bytes.starts_with(b"-3\r\n") || bytes.starts_with(b"$3\r\n")),
            "another type"
        );
    }

    #[test]
    fn nothing_is_too_short_to_be_altered() {
        let mut corruptor = Corruptor::new(1);
        for size in [0, 1, 2, 3, 4, 5] {
            for _ in 0..2_000 {
                let _ = corruptor.mangle(&vec![b'7'; size]).0.len();
            }
        }
    }
}
