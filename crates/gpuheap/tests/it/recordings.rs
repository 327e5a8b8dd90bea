//! `gpuheap explain` on whole recordings.

use std::path::Path;

use serde_json::Value;

use crate::context::TestContext;

/// The JSON report of the recording at `path`.
#[expect(dead_code, reason = "for the tests that follow")]
pub(crate) fn explain_json(path: &Path) -> Value {
    let output = TestContext::new().command().arg("explain").arg(path).arg("--json").output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{}: {stderr}", path.display());
    assert_eq!(stderr, "", "{}", path.display());
    serde_json::from_slice(&output.stdout).unwrap()
}
