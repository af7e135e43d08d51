use crate::support::*;
use crate::mysql_server::MariaDb;
use lock_core::{Backend, Mode};
#[tokio::test]
async fn speed() {
    let server = MariaDb::start(&[]).await.unwrap();
    let store = connect(&server.url()).await;
    let (mut a, mut r, mut i, mut n) = (vec![], vec![], vec![], vec![]);
    for _ in 0..1000 {
        let q = request("a", Mode::Exclusive);
        let t = std::time::Instant::now();
        held(&store, &q).await;
        a.push(t.elapsed());
        let t = std::time::Instant::now();
        store.release(&q.ticket()).await.unwrap();
        r.push(t.elapsed());
        let t = std::time::Instant::now();
        store.inspect(&q.name).await.unwrap();
        i.push(t.elapsed());
        let t = std::time::Instant::now();
        store.renew(&[lock_core::Renewal{ticket:q.ticket(),lease:LONG,waiter_lease:LONG}]).await;
        n.push(t.elapsed());
    }
    for (w, mut v) in [("acquire", a), ("release", r), ("inspect", i), ("renew",n)] {
        v.sort();
        println!("{w} {:?} {:?}", v[500], v[990]);
    }
}
