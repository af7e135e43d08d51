//! How the suite's way to sentinels and clusters changes the addresses that they tell.

use crate::harness::rewriter::rewrite;

#[test]
fn every_way_to_write_an_address_is_found() {
    let ports = [(40_001, 50_001), (40_002, 50_002)];
    let text = "-MOVED 1 127.0.0.1:40001\r\n$9\r\n127.0.0.1\r\n:40002\r\n$9\r\n127.0.0.1\r\n$5\r\n40001\r\n:40001\r\n127.0.0.1:9";
    let mut seen = text.as_bytes().to_vec();
    rewrite(&mut seen, &ports);
    let expected = "-MOVED 1 127.0.0.1:50001\r\n$9\r\n127.0.0.1\r\n:50002\r\n$9\r\n127.0.0.1\r\n$5\r\n50001\r\n:40001\r\n127.0.0.1:9";
    assert_eq!(String::from_utf8_lossy(&seen), expected);
}
