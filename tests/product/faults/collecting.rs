//! `coa gc` on S3, with an upload that was cut off.

use object_store::ObjectStore;
use object_store::aws::AmazonS3Builder;
use object_store::path::Path;

use super::server::{S3, fresh_bucket};
use crate::gc::{collects, scene_for_servers};

fn old_versions_and_unfinished_uploads_go(server: &S3) {
    let mut place = scene_for_servers();
    server.is_used_by(&mut place);
    let bucket = fresh_bucket();
    let store = format!("s3://{bucket}/deep/store");
    place.coa(&["doctor", "--store", &store, "--mend"]);
    collects(&place, &store);
    let objects = AmazonS3Builder::new()
        .with_bucket_name(&bucket)
        .with_endpoint(&server.endpoint)
        .with_allow_http(true)
        .with_region("us-east-1")
        .with_access_key_id(&server.key)
        .with_secret_access_key(&server.secret)
        .build()
        .unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for key in ["deep/store/tables/ingest/traces/traces.v1/partition=a/X-00000.parquet", "deep/store2/other"] {
        runtime.block_on(objects.put_multipart_opts(&Path::from(key), Default::default())).unwrap();
    }
    let now = ["gc", "--store", &store, "--retention", "0s", "--nothing-runs", "--verbose"];
    let listed = place.coa(&now).ok().out;
    assert!(listed.contains("X-00000.parquet") && !listed.contains("store2"), "{listed}");
    place.coa(&[&now[..], &["--delete"]].concat()).ok();
    assert_eq!(place.coa(&now).ok().out.trim(), "");
}

#[test]
fn on_ceph() {
    let Some(server) = S3::named("COA_TEST_RGW") else { return };
    old_versions_and_unfinished_uploads_go(&server);
}

#[test]
fn on_moto() {
    let Some(server) = S3::named("COA_TEST_MOTO") else { return };
    old_versions_and_unfinished_uploads_go(&server);
}
