//! Tokens that keep growing across a failover.
//!
//! Replicas are behind their master, and so is the counter of the one that is promoted. But every promotion has an
//! epoch that the sentinels or the cluster agreed on, larger than all before. The numbers of an epoch start at
//! `START + (epoch << SHIFT)`: the first join after a promotion lifts the counter there, above whatever the old master gave, or
//! still gives while it is cut off. The numbers themselves carry the epoch, so nothing else has to be kept.

use onelock_core::{Error, ErrorKind, Result};
use redis::InfoDict;

/// How many numbers an epoch has, as a power of two, in each bucket.
const SHIFT: u32 = 36;
/// Where those of epoch 0 start: above the clock, until 2041, at which a single server starts. It may have become one of several.
const START: u64 = 1 << 47;
/// Epochs whose numbers stay below 2^52, as every token of this store.
const EPOCHS: u64 = ((1 << 52) - START) >> SHIFT;

/// What a join on one connection must prove and where its numbers start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FailoverEpoch {
    /// No number of this epoch is at or below this.
    pub(crate) floor: u64,
    /// The server's replication id when its epoch was read: it takes a new one when it is promoted, so a connection
    /// that outlived a demotion and a promotion does not use the old epoch.
    pub(crate) replid: String,
}

impl FailoverEpoch {
    pub(crate) fn new(epoch: u64, replication: &InfoDict) -> Result<Self> {
        if epoch >= EPOCHS {
            let text = format!("failover epoch {epoch} is past {EPOCHS}: its tokens cannot be written");
            return Err(Error::new(ErrorKind::Full, text));
        }
        let replid = replication.get("master_replid").filter(|id: &String| !id.is_empty());
        let replid =
            replid.ok_or_else(|| Error::new(ErrorKind::Protocol, "the server has no replication id"))?;
        Ok(Self { floor: START + (epoch << SHIFT), replid })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_epoch_starts_above_all_numbers_of_the_one_before() {
        let info = InfoDict::new("role:master\r\nmaster_replid:ab\r\nmaster_replid2:cd\r\n");
        let fence = |epoch| FailoverEpoch::new(epoch, &info);
        assert_eq!(fence(0).unwrap(), FailoverEpoch { floor: START, replid: "ab".into() });
        assert_eq!(fence(3).unwrap().floor, (1 << 47) + (3 << 36));
        assert!(fence(EPOCHS - 1).unwrap().floor + (1 << SHIFT) <= 1 << 52);
        assert_eq!(fence(EPOCHS).unwrap_err().kind(), ErrorKind::Full);
        assert!(FailoverEpoch::new(1, &InfoDict::new("role:master")).is_err());
    }
}
