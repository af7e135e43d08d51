//! Just enough of the PostgreSQL protocol to look after a server that asks for no password.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::io::{AsyncReadExt, AsyncWriteExt, BufStream};
use tokio::net::TcpStream;

use crate::verdict::{Context as _, Stop, Verdict};

/// A row of texts.
pub type Row = Vec<Option<String>>;

const PROTOCOL: i32 = 3 << 16;
const SIGNED_IN: i32 = 0;

/// A connection.
#[derive(Debug)]
pub struct Wire(BufStream<TcpStream>);

impl Wire {
    /// Connects to a server or a pooler on this machine as the user `postgres`, by this name in the server's log.
    ///
    /// # Errors
    /// When nobody answers there, or with what the server says.
    pub async fn connect(port: u16, database: &str, by: &str) -> Verdict<Self> {
        let stream = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?;
        stream.set_nodelay(true)?;
        let mut wire = Self(BufStream::new(stream));
        let mut body = PROTOCOL.to_be_bytes().to_vec();
        for text in ["user", "postgres", "database", database, "application_name", by, ""] {
            body.extend_from_slice(text.as_bytes());
            body.push(0);
        }
        wire.send(None, &body).await?;
        wire.rows().await?;
        Ok(wire)
    }

    /// Runs statements; the rows of all of them.
    ///
    /// # Errors
    /// When the connection fails, or with what the server says.
    pub async fn query(&mut self, sql: &str) -> Verdict<Vec<Row>> {
        self.send(Some(b'Q'), &[sql.as_bytes(), &[0]].concat()).await?;
        self.rows().await
    }

    async fn send(&mut self, kind: Option<u8>, body: &[u8]) -> Verdict {
        if let Some(kind) = kind {
            self.0.write_u8(kind).await?;
        }
        self.0.write_i32(i32::try_from(body.len() + 4)?).await?;
        self.0.write_all(body).await?;
        Ok(self.0.flush().await?)
    }

    /// Reads until the server is ready for the next.
    async fn rows(&mut self) -> Verdict<Vec<Row>> {
        let (mut rows, mut wrong) = (Vec::new(), None);
        loop {
            let kind = self.0.read_u8().await?;
            let mut body = vec![0; usize::try_from(self.0.read_i32().await? - 4)?];
            self.0.read_exact(&mut body).await?;
            match kind {
                b'Z' => return wrong.map_or(Ok(rows), Err),
                b'D' => rows.push(row(&body).context("a row")?),
                b'R' if number(&body) != Some(SIGNED_IN) => {
                    return Err(Stop::failed("it asks for a password"));
                }
                b'E' => {
                    let stop = Stop::failed(String::from_utf8_lossy(&body).replace('\0', " "));
                    // The last that a server says which closes the connection.
                    if body.starts_with(b"SFATAL") {
                        return Err(stop);
                    }
                    wrong = Some(stop);
                }
                _ => {}
            }
        }
    }
}

fn number(bytes: &[u8]) -> Option<i32> {
    Some(i32::from_be_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn row(body: &[u8]) -> Option<Row> {
    let count = u16::from_be_bytes(body.get(..2)?.try_into().ok()?);
    let mut rest = &body[2..];
    let mut row = Row::new();
    for _ in 0..count {
        let length = number(rest)?;
        rest = &rest[4..];
        // A negative length is a NULL.
        row.push(match usize::try_from(length) {
            Ok(length) => {
                let text = String::from_utf8_lossy(rest.get(..length)?).into_owned();
                rest = &rest[length..];
                Some(text)
            }
            Err(_) => None,
        });
    }
    Some(row)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_texts_and_gaps() {
        let body = b"\0\x03\0\0\0\x02ab\xff\xff\xff\xff\0\0\0\0";
        assert_eq!(row(body), Some(vec![Some("ab".to_owned()), None, Some(String::new())]));
        assert_eq!(row(&body[..body.len() - 1]), None);
    }
}
