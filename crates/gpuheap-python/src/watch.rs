//! The judge of a running program's memory, fed by `gpuheap.watch`.

use gpuheap_explain::Confidence;
use gpuheap_explain::health::{self, Sample, Surroundings};
use pyo3::prelude::*;
use pyo3::types::PyDict;

/// Follows one device.
#[pyclass(module = "gpuheap._core")]
pub(crate) struct Monitor(health::Monitor);

#[pymethods]
impl Monitor {
    #[new]
    fn new(unit: &str) -> Self {
        Self(health::Monitor::new(unit))
    }

    #[expect(clippy::too_many_arguments, reason = "called after every step: a tuple of numbers is the cheapest")]
    #[pyo3(signature = (
        step, seconds, allocated, blocks, reserved, peak_active, peak_reserved, collected, retries, ooms, /
    ))]
    fn push(
        &mut self,
        step: u64,
        seconds: f64,
        allocated: u64,
        blocks: Option<u64>,
        reserved: u64,
        peak_active: Option<u64>,
        peak_reserved: Option<u64>,
        collected: Option<u64>,
        retries: u64,
        ooms: u64,
    ) {
        self.0.push(&Sample {
            step,
            seconds,
            allocated,
            blocks,
            reserved,
            peak_active,
            peak_reserved,
            collected,
            retries,
            ooms,
        });
    }

    #[pyo3(signature = (*, free=None, total=None, others=None, limit=None))]
    fn health<'py>(
        &mut self,
        py: Python<'py>,
        free: Option<u64>,
        total: Option<u64>,
        others: Option<u64>,
        limit: Option<u64>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let Some(health) = self.0.health(&Surroundings { free, total, others, limit }) else { return Ok(None) };
        let confidence = match health.confidence {
            Confidence::Low => "low",
            Confidence::Medium => "medium",
            Confidence::High => "high",
        };
        let row = PyDict::new(py);
        row.set_item("step", health.step)?;
        row.set_item("kind", health.kind.name())?;
        row.set_item("sick", health.kind.is_sick())?;
        row.set_item("confidence", confidence)?;
        row.set_item("sentence", health.sentence)?;
        row.set_item("steps_judged", health.steps_judged)?;
        row.set_item("since", health.since)?;
        row.set_item("allocated", health.allocated)?;
        row.set_item("blocks", health.blocks)?;
        row.set_item("reserved", health.reserved)?;
        row.set_item("waste", health.waste)?;
        row.set_item("free", health.free)?;
        row.set_item("total", health.total)?;
        row.set_item("outside", health.outside)?;
        row.set_item("others", health.others)?;
        row.set_item("growth_per_step", health.growth_per_step)?;
        row.set_item("steps_left", health.steps_left)?;
        row.set_item("seconds_left", health.seconds_left)?;
        row.set_item("retries", health.retries)?;
        row.set_item("ooms", health.ooms)?;
        Ok(Some(row))
    }
}
