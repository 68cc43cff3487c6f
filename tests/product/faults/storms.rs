//! S3 in a storm: 503 SlowDown, resets and lost answers, on the real server behind a proxy that does these.

use std::sync::atomic::Ordering;

use super::Scene;
use super::proxy::Proxy;
use super::server::{S3, fresh_bucket};

fn storm(server: &S3, seed: u64) {
    let mut scene = Scene::new(6, 3);
    server.is_used_by(&mut scene.place);
    let store = format!("s3://{}/deep/store", fresh_bucket());
    scene.place.coa(&["doctor", "--store", &store, "--mend"]);
    let proxy = Proxy::start(&server.endpoint, 8, seed);
    S3 { endpoint: proxy.endpoint(), ..server.clone() }.is_used_by(&mut scene.place);
    scene.place.coa(&["run", "p.toml", "--store", &store]).ok();
    let faults =
        [&proxy.faults.busy, &proxy.faults.reset, &proxy.faults.lost].map(|count| count.load(Ordering::Relaxed));
    assert!(faults.iter().all(|count| *count >= 3), "busy, reset, lost: {faults:?}");
    server.is_used_by(&mut scene.place);
    scene.holds(&store);
    let twice = "select count(*) - count(distinct trace_id) from ingest.traces";
    assert_eq!(scene.place.number(&store, twice), 0);
}

#[test]
fn on_ceph() {
    let Some(server) = S3::named("COA_TEST_RGW") else { return };
    storm(&server, 7);
}

#[test]
fn on_moto() {
    let Some(server) = S3::named("COA_TEST_MOTO") else { return };
    storm(&server, 8);
}
