//! Just enough of the MySQL protocol to look after a server that asks for no password.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use crate::verdict::{Context as _, Stop, Verdict};

/// A row of texts.
pub type Row = Vec<Option<String>>;

/// Of a client: the protocol of today, with a plugin that proves who it is.
const ABLE_TO: u32 = 0x1 | 0x200 | 0x8000 | 0x8_0000;
const UTF8: u8 = 45;
const QUERY: u8 = 3;

// How a packet begins.
const FINE: u8 = 0;
const MORE: u8 = 1;
const NULL: u8 = 0xfb;
const END: u8 = 0xfe;
const WRONG: u8 = 0xff;

/// A connection.
#[derive(Debug)]
pub struct Wire {
    stream: BufStream<TcpStream>,
    sequence: u8,
}

impl Wire {
    /// Connects to a server on this machine as the user `root`.
    ///
    /// # Errors
    /// When nobody answers there, or with what the server says.
    pub async fn connect(port: u16) -> Verdict<Self> {
        let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        stream.set_nodelay(true)?;
        let mut wire = Self { stream: BufStream::new(stream), sequence: 0 };
        wire.packet().await.context("the greeting")?;
        let mut answer = ABLE_TO.to_le_bytes().to_vec();
        answer.extend((1_u32 << 24).to_le_bytes());
        answer.push(UTF8);
        answer.extend([0; 23]);
        // The name, and no proof: there is no password.
        answer.extend_from_slice(b"root\0\0mysql_native_password\0");
        wire.send(&answer).await?;
        loop {
            match wire.packet().await?.first().copied().context("an empty packet")? {
                FINE => return Ok(wire),
                // Another way to prove it: again there is no password.
                END => wire.send(&[]).await?,
                MORE => {}
                other => return Err(Stop::failed(format!("it asks for more: {other}"))),
            }
        }
    }

    /// Runs a statement.
    ///
    /// # Errors
    /// When the connection fails, or with what the server says.
    pub async fn query(&mut self, sql: &str) -> Verdict<Vec<Row>> {
        self.sequence = 0;
        self.send(&[&[QUERY], sql.as_bytes()].concat()).await?;
        if self.packet().await?.first() == Some(&FINE) {
            return Ok(Vec::new());
        }
        // What the columns are.
        while !is_end(&self.packet().await?) {}
        let mut rows = Vec::new();
        loop {
            let packet = self.packet().await?;
            if is_end(&packet) {
                return Ok(rows);
            }
            rows.push(row(&packet).context("a row")?);
        }
    }

    async fn send(&mut self, body: &[u8]) -> Verdict {
        let length = u32::try_from(body.len())?.to_le_bytes();
        self.stream.write_all(&[length[0], length[1], length[2], self.sequence]).await?;
        self.stream.write_all(body).await?;
        Ok(self.stream.flush().await?)
    }

    async fn packet(&mut self) -> Verdict<Vec<u8>> {
        let mut header = [0; 4];
        self.stream.read_exact(&mut header).await?;
        let [a, b, c, sequence] = header;
        self.sequence = sequence.wrapping_add(1);
        let mut body = vec![0; u32::from_le_bytes([a, b, c, 0]) as usize];
        self.stream.read_exact(&mut body).await?;
        match body.first() {
            Some(&WRONG) => Err(Stop::failed(String::from_utf8_lossy(body.get(3..).unwrap_or_default()))),
            _ => Ok(body),
        }
    }
}

fn is_end(packet: &[u8]) -> bool {
    packet.first() == Some(&END) && packet.len() < 9
}

fn row(mut rest: &[u8]) -> Option<Row> {
    let mut row = Row::new();
    while let Some((&first, tail)) = rest.split_first() {
        if first == NULL {
            row.push(None);
            rest = tail;
            continue;
        }
        let wide = match first {
            0xfc => 2,
            0xfd => 3,
            0xfe => 8,
            _ => 0,
        };
        let length = match wide {
            0 => usize::from(first),
            _ => tail.get(..wide)?.iter().rev().fold(0, |sum, &byte| sum << 8 | usize::from(byte)),
        };
        let text = tail.get(wide..wide + length)?;
        row.push(Some(String::from_utf8_lossy(text).into_owned()));
        rest = &tail[wide + length..];
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_texts_and_gaps() {
        let long = "x".repeat(300);
        let mut body = b"\x02ab\xfb\0\xfc".to_vec();
        body.extend(300_u16.to_le_bytes());
        body.extend(long.as_bytes());
        assert_eq!(row(&body), Some(vec![Some("ab".to_owned()), None, Some(String::new()), Some(long)]));
        assert_eq!(row(&body[..body.len() - 1]), None);
    }
}
