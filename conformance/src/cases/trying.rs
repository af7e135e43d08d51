//! Everything at once: clients in processes of their own at work, while all that can break does.

use crate::case::{Need, table};
use crate::ctx::Ctx;
use crate::ensure;
use crate::trial::{self, Goal, nemesis};
use crate::verdict::Verdict;

table! {
    everything_breaks: [3, 4, 5, 16], [Need::Reconnect], 300;
}

/// Clients that are stopped, killed and cut off, on a server that is stopped and killed: no two hold at once, tokens
/// grow, the line keeps its order, a resource that checks tokens loses nothing, and in the end everybody works again and
/// nothing is left.
async fn everything_breaks(ctx: &Ctx) -> Verdict {
    let goal = Goal { cycles: ctx.cycles(200), faults: ctx.volume(20) };
    let clients = if ctx.volume(1) > 1 { 6 } else { 3 };
    let findings = trial::run(ctx, clients, goal).await?;
    ctx.notes().trial(&findings);
    ensure!(findings.violations.is_empty(), "{}", findings.violations.join("\n"));
    nemesis::all_kinds(ctx, &findings.faults)?;
    let lossy = findings.faults.contains_key("replies lost");
    ensure!(!lossy || findings.unclear > 0, "every answer was clear: the run proves nothing");
    ensure!(findings.lost > 0, "no lease was lost: the run proves nothing");
    ensure!(findings.cut > 0, "no acquire was cut: the run proves nothing");
    if ctx.harness().capabilities().fencing {
        ensure!(
            findings.refused > 0,
            "no write came late: the run proves nothing ({} writes)",
            findings.writes
        );
        ensure!(findings.fenced_lost == 0, "{} of {} writes are lost", findings.fenced_lost, findings.writes);
    }
    ensure!(findings.unfenced_lost > 0, "the twin lost nothing: the run proves nothing");
    Ok(())
}
