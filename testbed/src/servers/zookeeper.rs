//! Servers of ZooKeeper, alone or three together.

use std::ffi::OsString;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

use super::process::Process;
use super::tls::Files;
use super::{Place, asked, free_port};
use crate::verdict::Verdict;

const PROGRAM: &str = "java";
/// What the program is made of.
const JARS: &str = "zookeeper zookeeper-jute slf4j-log4j12 log4j-1.2 slf4j-api metrics-core snappy-java commons-io netty-all \
    netty-common netty-buffer netty-transport netty-handler netty-codec netty-resolver netty-transport-native-epoll \
    netty-transport-native-unix-common";

/// The servers' tick: small, so that sessions may be short.
pub const TICK: Duration = Duration::from_millis(200);

/// How a server is set up.
#[derive(Clone, Debug, Default)]
pub struct Setup {
    /// Speaks TLS on a second port, with this certificate.
    pub tls: Option<Files>,
    /// Lines of the configuration.
    pub lines: Vec<String>,
    /// Definitions for the virtual machine.
    pub defines: Vec<String>,
    /// Where it keeps its data. On disk it also runs as fast as it can once warm, where a test wants it to be there soon.
    pub place: Place,
    /// The number of this server in an ensemble; 0 when it stands alone.
    pub id: u32,
    /// The host it runs on; the loopback's when there is none.
    pub host: Option<(String, Ipv4Addr)>,
}

impl Setup {
    fn address(&self) -> Ipv4Addr {
        self.host.as_ref().map_or(Ipv4Addr::LOCALHOST, |(_, address)| *address)
    }
}

/// A running server.
#[derive(Debug)]
pub struct ZkServer {
    setup: Setup,
    port: u16,
    tls_port: u16,
    /// Its process.
    pub process: Process,
}

impl ZkServer {
    /// Starts one and waits until it serves.
    ///
    /// # Errors
    /// When it is not installed, or does not come up.
    pub async fn start(setup: Setup) -> Verdict<Self> {
        let server = Self::begin(setup)?;
        server.ready().await?;
        Ok(server)
    }

    /// Starts one and does not wait.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn begin(setup: Setup) -> Verdict<Self> {
        let mut process = Process::new(setup.place, "data")?;
        process.host = setup.host.as_ref().map(|(host, _)| host.clone());
        let server = Self { setup, port: free_port()?, tls_port: free_port()?, process };
        server.launch()?;
        Ok(server)
    }

    /// Where it listens to clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        (self.setup.address(), self.port).into()
    }

    /// Where it speaks TLS.
    #[must_use]
    pub fn tls_port(&self) -> u16 {
        self.tls_port
    }

    /// Where its snapshots and logs are.
    #[must_use]
    pub fn data(&self) -> PathBuf {
        self.process.data().join("version-2")
    }

    /// Starts it again on the same data and ports.
    ///
    /// # Errors
    /// When it is not installed.
    pub fn launch(&self) -> Verdict {
        let data = self.process.data();
        let mut lines = vec![
            format!("dataDir={}", data.display()),
            format!("clientPort={}", self.port),
            format!("clientPortAddress={}", self.setup.address()),
            format!("tickTime={}", TICK.as_millis()),
            "minSessionTimeout=400".to_owned(),
            "maxSessionTimeout=7200000".to_owned(),
            "maxClientCnxns=0".to_owned(),
            "admin.enableServer=false".to_owned(),
            "4lw.commands.whitelist=*".to_owned(),
        ];
        lines.extend(self.setup.lines.iter().cloned());
        let mut defines = vec!["-Dzookeeper.extendedTypesEnabled=true".to_owned()];
        if self.setup.place == Place::Memory {
            let hurried = [
                "-Dzookeeper.forceSync=no",
                "-XX:TieredStopAtLevel=1",
                // Empty lock nodes go soon instead of once in a minute.
                "-Dznode.container.checkIntervalMs=200",
                "-Dznode.container.maxPerMinute=600000",
            ];
            defines.extend(hurried.map(str::to_owned));
        }
        defines.extend(self.setup.defines.iter().map(|define| format!("-D{define}")));
        if let Some(files) = &self.setup.tls {
            let store = self.process.folder().join("server.pem");
            let (key, certificate) =
                (std::fs::read_to_string(&files.key)?, std::fs::read_to_string(&files.certificate)?);
            std::fs::write(&store, format!("{key}{certificate}"))?;
            lines.extend([
                "serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory".to_owned(),
                format!("secureClientPort={}", self.tls_port),
                "secureClientPortAddress=127.0.0.1".to_owned(),
                format!("ssl.keyStore.location={}", store.display()),
                "ssl.keyStore.type=PEM".to_owned(),
                format!("ssl.trustStore.location={}", files.authority.display()),
                "ssl.trustStore.type=PEM".to_owned(),
                "ssl.clientAuth=none".to_owned(),
            ]);
        }
        std::fs::create_dir_all(&data)?;
        if self.setup.id > 0 {
            std::fs::write(data.join("myid"), self.setup.id.to_string())?;
        }
        let config = self.process.folder().join("zoo.cfg");
        std::fs::write(&config, lines.join("\n"))?;
        std::fs::write(
            self.process.folder().join("log4j.properties"),
            "log4j.rootLogger=WARN, A\nlog4j.appender.A=org.apache.log4j.ConsoleAppender\n\
             log4j.appender.A.layout=org.apache.log4j.PatternLayout\nlog4j.appender.A.layout.ConversionPattern=%d %p %c{1} %m%n\n",
        )?;
        let jars: String = JARS.split_whitespace().map(|jar| format!(":/usr/share/java/{jar}.jar")).collect();
        let mut arguments: Vec<OsString> =
            vec!["-cp".into(), format!("{}{jars}", self.process.folder().display()).into()];
        arguments.extend(["-Xmx256m", "-Xms32m", "-XX:+UseSerialGC", "-XX:-UsePerfData"].map(OsString::from));
        arguments.extend(defines.into_iter().map(OsString::from));
        arguments
            .extend(["org.apache.zookeeper.server.quorum.QuorumPeerMain".into(), config.into_os_string()]);
        self.process.start(Vec::new(), PROGRAM, arguments)
    }

    /// Waits until it serves.
    ///
    /// # Errors
    /// When it does not soon, or has ended.
    pub async fn ready(&self) -> Verdict {
        let ready = self.process.until(|| async { self.mode().await.is_some() }).await;
        ready.map_err(|stop| stop.during(self.process.log()))
    }

    /// Kills it and starts it again.
    ///
    /// # Errors
    /// When it does not come back.
    pub async fn restart(&self) -> Verdict {
        self.process.kill()?;
        self.launch()?;
        self.ready().await
    }

    /// `standalone`, `leader` or `follower`; `None` while it does not serve.
    pub async fn mode(&self) -> Option<String> {
        let text = tokio::time::timeout(Duration::from_secs(1), self.word("srvr")).await.ok()?.ok()?;
        text.lines().find_map(|line| line.strip_prefix("Mode: ")).map(str::to_owned)
    }

    /// Asks one of the four-letter questions.
    ///
    /// # Errors
    /// When it does not answer.
    pub async fn word(&self, word: &str) -> Verdict<String> {
        asked(self.address(), word).await
    }
}
