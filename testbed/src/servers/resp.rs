//! Just enough of the Redis protocol to look into a server: the suite must not see it through the driver under test.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::verdict::{Context as _, Stop, Verdict};

/// A reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A line, a number or a text.
    Text(String),
    /// Nothing.
    Nil,
    /// Several replies.
    Many(Vec<Reply>),
}

impl Reply {
    /// The texts in it.
    #[must_use]
    pub fn texts(self) -> Vec<String> {
        match self {
            Self::Text(text) => vec![text],
            Self::Nil => Vec::new(),
            Self::Many(replies) => replies.into_iter().flat_map(Self::texts).collect(),
        }
    }
}

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

    /// Sends a command and reads its reply.
    ///
    /// # Errors
    /// When the connection fails, or with what the server says.
    pub async fn call(&mut self, command: &[&str]) -> Verdict<Reply> {
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

    fn reply(&mut self) -> futures_util::future::BoxFuture<'_, Verdict<Reply>> {
        Box::pin(async move {
            let line = self.line().await?;
            let (kind, rest) = line.split_at_checked(1).context("an empty reply")?;
            match kind {
                "+" | ":" => Ok(Reply::Text(rest.to_owned())),
                "-" => Err(Stop::failed(rest)),
                "$" => {
                    let Ok(length) = rest.parse::<usize>() else { return Ok(Reply::Nil) };
                    let mut bytes = vec![0; length + 2];
                    self.stream.read_exact(&mut bytes).await?;
                    bytes.truncate(length);
                    Ok(Reply::Text(String::from_utf8_lossy(&bytes).into_owned()))
                }
                "*" => {
                    let count = rest.parse::<usize>().unwrap_or(0);
                    let mut replies = Vec::new();
                    for _ in 0..count {
                        replies.push(self.reply().await?);
                    }
                    Ok(Reply::Many(replies))
                }
                _ => Err(Stop::failed(format!("a reply that is none: {line:?}"))),
            }
        })
    }
}
