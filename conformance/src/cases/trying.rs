//! Everything at once: clients in processes of their own at work, while all that can break does.

use crate::case::{Need, table};
use crate::ctx::Ctx;
use crate::ensure;
use crate::trial::judge::Findings;
use crate::trial::{self, Goal, Scene, nemesis};
use crate::verdict::Verdict;

table! {
    everything_breaks: [3, 4, 5, 16], [Need::Reconnect], 300;
    work_is_alone_whatever_breaks: [], [Need::Reconnect], 300;
    work_is_alone_though_leaders_stall: [], [Need::Reconnect, Need::Leader], 300;
}

fn clients(ctx: &Ctx) -> u32 {
    if ctx.volume(1) > 1 { 6 } else { 3 }
}

/// No violation; and the run proves something.
fn sound(ctx: &Ctx, findings: &Findings, scene: Scene) -> Verdict {
    ctx.notes().trial(findings);
    ensure!(findings.violations.is_empty(), "{}", findings.violations.join("\n"));
    nemesis::all_kinds(ctx, scene, &findings.faults)?;
    let (terms, deposed, seen) = (findings.terms, findings.deposed, findings.observed);
    ensure!(
        terms > 4 && seen > 2 && (!nemesis::deposes(ctx, scene) || deposed > 0),
        "{terms} terms, {deposed} of them lost, {seen} leaders seen: the run proves nothing"
    );
    Ok(())
}

/// Clients that are stopped, killed and cut off, on a server that is stopped and killed: no two hold at once, tokens
/// grow, the line keeps its order, a resource that checks tokens loses nothing, and in the end everybody works again and
/// nothing is left.
async fn everything_breaks(ctx: &Ctx) -> Verdict {
    let goal = Goal { cycles: ctx.cycles(200), faults: ctx.volume(24) };
    let findings = trial::run(ctx, clients(ctx), goal, Scene::Everything).await?;
    sound(ctx, &findings, Scene::Everything)?;
    let lossy = findings.faults.contains_key("replies lost");
    ensure!(!lossy || findings.unclear > 0, "every answer was clear: the run proves nothing");
    ensure!(findings.lost > 0, "no lease was lost: the run proves nothing");
    ensure!(findings.cut > 0, "no acquire was cut: the run proves nothing");
    if ctx.harness().capabilities().fencing {
        let (writes, lost) = (findings.writes, findings.fenced_lost);
        ensure!(findings.refused > 0, "no write of {writes} came late: the run proves nothing");
        ensure!(lost == 0, "{lost} of {writes} writes are lost");
    }
    ensure!(findings.unfenced_lost > 0, "the twin lost nothing: the run proves nothing");
    Ok(())
}

/// Clients that are cut off, or served late, on a server that is stopped and killed: what they do under a lock has ended
/// before the next one holds, whether the hold is given back or ends by its lease, by the longest hold, or with a
/// lock-delay.
async fn work_is_alone_whatever_breaks(ctx: &Ctx) -> Verdict {
    let faults = if nemesis::kinds(ctx, Scene::Ways) == 0 { 0 } else { ctx.volume(20) };
    work_is_alone(ctx, Goal { cycles: ctx.cycles(100), faults }, Scene::Ways).await
}

/// The same where the server that leads the others stalls for longer than leases and sessions last.
async fn work_is_alone_though_leaders_stall(ctx: &Ctx) -> Verdict {
    work_is_alone(ctx, Goal { cycles: ctx.cycles(100), faults: ctx.volume(4) }, Scene::Leader).await
}

async fn work_is_alone(ctx: &Ctx, goal: Goal, scene: Scene) -> Verdict {
    let findings = trial::run(ctx, clients(ctx), goal, scene).await?;
    sound(ctx, &findings, scene)?;
    ensure!(findings.worked > 0, "no work was judged: the run proves nothing");
    ensure!(findings.stopped > 0, "no end of a hold stopped its work: the run proves nothing");
    let lost = if ctx.harness().capabilities().fencing { findings.fenced_lost } else { 0 };
    ensure!(lost == 0, "{lost} of {} writes are lost", findings.writes);
    Ok(())
}
