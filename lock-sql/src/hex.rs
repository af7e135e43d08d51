//! Hexadecimal digits by hand: a request has hundreds, and formatting them byte by byte takes longer than all the rest of it.

/// Appends two lower-case digits for each byte.
pub(crate) fn push(out: &mut String, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    out.reserve(2 * bytes.len());
    for byte in bytes {
        out.push(char::from(DIGITS[usize::from(byte >> 4)]));
        out.push(char::from(DIGITS[usize::from(byte & 15)]));
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_byte_has_its_digits() {
        let bytes: Vec<u8> = (0..=255).collect();
        let mut text = "x".to_owned();
        super::push(&mut text, &bytes);
        let formatted: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(text, "x".to_owned() + &formatted);
    }
}
