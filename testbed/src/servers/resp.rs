//! Just enough of the Redis protocol to look into a server: the suite must not see it through the driver under test.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::verdict::{Context as _, Stop, Verdict};

/// A connection.
#[derive(Debug)]
pub struct Resp {
    stream: BufReader<TcpStream>,
    local: SocketAddr,
}

impl Resp {
    /// Connects.
    ///
    /// # Errors
    /// When nobody answers there.
    pub async fn connect(address: SocketAddr) -> Verdict<Self> {
        let stream = tokio::time::timeout(Duration::from_secs(10), TcpStream::connect(address))
            .await
            .map_err(|_| Stop::failed(format!("{address} does not answer")))??;
        stream.set_nodelay(true)?;
        let local = stream.local_addr()?;
        Ok(Self { stream: BufReader::new(stream), local })
    }

    /// This end's address: who we are in the server's eyes.
    #[must_use]
    pub fn local(&self) -> SocketAddr {
        self.local
    }

    /// Sends a command and reads its reply: the lines, numbers and texts in it, in their order. What is nothing is left out.
    ///
    /// # Errors
    /// When the connection fails, or with what the server says.
    pub async fn call(&mut self, command: &[&str]) -> Verdict<Vec<String>> {
        let mut out = format!("*{}\r\n", command.len());
        for part in command {
            out.push_str(&format!("${}\r\n{part}\r\n", part.len()));
        }
        self.stream.get_mut().write_all(out.as_bytes()).await?;
        self.reply().await.map_err(|error| error.during(command.first().copied().unwrap_or_default()))
    }

    /// The next line, for `MONITOR`.
    ///
    /// # Errors
    /// When the connection ends.
    pub async fn line(&mut self) -> Verdict<String> {
        let mut line = Vec::new();
        if self.stream.read_until(b'\n', &mut line).await? == 0 {
            return Err(Stop::failed("the server closed the connection"));
        }
        Ok(String::from_utf8_lossy(&line).trim_end().to_owned())
    }

    async fn reply(&mut self) -> Verdict<Vec<String>> {
        let (mut texts, mut left) = (Vec::new(), 1);
        while left > 0 {
            left -= 1;
            let line = self.line().await?;
            let (kind, rest) = line.split_at_checked(1).context("an empty reply")?;
            match kind {
                "+" | ":" => texts.push(rest.to_owned()),
                "-" => return Err(Stop::failed(rest)),
                // A negative length is a nil.
                "$" => {
                    let Ok(length) = rest.parse::<usize>() else { continue };
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes).await?;
                    texts.push(String::from_utf8_lossy(&bytes[..length]).into_owned());
                }
                "*" => left += rest.parse::<usize>().unwrap_or(0),
                _ => return Err(Stop::failed(format!("a reply that is none: {line:?}"))),
            }
        }
        Ok(texts)
    }
}
