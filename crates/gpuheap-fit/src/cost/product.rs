//! Matrix products by their shape: results are cut into tiles, tiles are dealt to multiprocessors, and the last round of
//! them is rarely full. Few tiles of long sums are cut along the sum, too.

use crate::device::Device;

/// Sums are cut into parts of this length at least.
const LEAST_SUM: f64 = 128.0;
/// Parts that sums are cut into.
const CUTS: [f64; 8] = [1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0];
/// What a kernel takes beside that adds up the parts, in microseconds.
const ADDING_UP_US: f64 = 2.0;

/// Rows and columns of a tile, and the part of the full speed that it comes to.
type Tile = (f64, f64, f64);

/// Tiles of kernels for 32-bit numbers: small ones read their operands more often.
const PLAIN: [Tile; 5] =
    [(128.0, 128.0, 1.0), (128.0, 64.0, 0.82), (64.0, 128.0, 0.82), (64.0, 64.0, 0.66), (32.0, 32.0, 0.3)];
/// Tiles of kernels that use the matrix units.
const UNITS: [Tile; 7] = [
    (128.0, 256.0, 1.0),
    (256.0, 128.0, 1.0),
    (128.0, 128.0, 0.85),
    (64.0, 128.0, 0.7),
    (128.0, 64.0, 0.7),
    (64.0, 64.0, 0.5),
    (32.0, 64.0, 0.3),
];

/// A product of `rows` x `sum` by `sum` x `columns`, or so many of them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Product {
    pub(super) rows: f64,
    pub(super) columns: f64,
    pub(super) sum: f64,
    pub(super) count: f64,
}

/// How a type of number is multiplied.
#[derive(Clone, Copy, Debug)]
pub(super) struct Speed {
    /// Operations a second of the whole device.
    pub(super) flops: f64,
    /// Whether matrix units do it.
    pub(super) units: bool,
}

impl Product {
    /// The shape that does `flops` operations, reads `read` and writes `written` numbers: a trace does not say it, but
    /// three figures tell three sizes.
    pub(super) fn from_work(flops: f64, read: f64, written: f64) -> Self {
        let sum = (flops / (2.0 * written.max(1.0))).max(1.0);
        // rows * columns is known, and rows + columns is what is read over the length of the sums.
        let (area, edges) = (written.max(1.0), read / sum);
        let root = (edges * edges - 4.0 * area).max(0.0).sqrt();
        let columns = ((edges - root) / 2.0).max(1.0);
        Self { rows: (area / columns).max(1.0), columns, sum, count: 1.0 }
    }

    /// Many products at once. Of them the figures do not tell how many there are: they are taken as square, which they
    /// are in attention.
    pub(super) fn many_from_work(flops: f64, read: f64, written: f64) -> Self {
        let sum = (flops / (2.0 * written.max(1.0))).max(1.0);
        let edges = (read / sum).max(1.0);
        let side = (2.0 * written / edges).max(1.0);
        Self { rows: side, columns: side, sum, count: (written / (side * side)).max(1.0) }
    }

    /// The time of its kernel, in microseconds.
    pub(super) fn us(&self, speed: Speed, device: &Device) -> f64 {
        let processors = device.multiprocessors.value.max(1.0);
        let each = speed.flops.max(1.0) / processors;
        let tiles: &[Tile] = if speed.units { &UNITS } else { &PLAIN };
        // What it takes until the first operands are there and after the last sum, as a length of the sum.
        let ends = if speed.units { 100.0 } else { 30.0 };
        let mut best = f64::INFINITY;
        for &(rows, columns, part) in tiles {
            let count = self.count * (self.rows / rows).ceil() * (self.columns / columns).ceil();
            for cuts in CUTS {
                if cuts > 1.0 && self.sum / cuts < LEAST_SUM {
                    break;
                }
                let rounds = (count * cuts / processors).ceil();
                let mut us = rounds * 2.0 * rows * columns * (self.sum / cuts + ends) / (each * part) * 1e6;
                if cuts > 1.0 {
                    let sums = 4.0 * self.count * self.rows * self.columns;
                    us += 0.5 * sums / device.bandwidth() * 1e6 + ADDING_UP_US;
                }
                best = best.min(us);
            }
        }
        best
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn us(rows: f64, columns: f64, sum: f64, dtype: &str) -> f64 {
        let device = Device::find("H200", None).unwrap();
        let speed = Speed { flops: device.speed(dtype), units: dtype != "float32" };
        Product { rows, columns, sum, count: 1.0 }.us(speed, &device)
    }

    #[test]
    fn products_take_what_was_measured() {
        // Microseconds on an H200 by CUDA's events, with the 12 to 15 that one call takes from event to event.
        for (rows, columns, sum, dtype, measured) in [
            (8192.0, 8192.0, 8192.0, "float32", 21_559.0),
            (8192.0, 3072.0, 768.0, "float32", 829.0),
            (16_384.0, 768.0, 768.0, "float32", 394.0),
            (768.0, 3072.0, 8192.0, "float32", 782.0),
            (768.0, 768.0, 4096.0, "float32", 110.0),
            (2048.0, 768.0, 768.0, "float32", 80.0),
            (8192.0, 8192.0, 8192.0, "bfloat16", 1400.0),
            (4096.0, 5632.0, 2048.0, "bfloat16", 152.0),
            (4096.0, 4096.0, 4096.0, "tf32", 354.0),
        ] {
            let predicted = us(rows, columns, sum, dtype) + 12.0;
            let error = predicted / measured - 1.0;
            assert!(error.abs() < 0.25, "{rows} x {columns} x {sum} {dtype}: {predicted:.0} for {measured}");
        }
    }

    #[test]
    fn a_round_of_tiles_that_is_hardly_begun_costs_a_whole_one() {
        let (full, over) =
            (us(128.0 * 12.0, 128.0 * 11.0, 512.0, "float32"), us(128.0 * 12.0, 128.0 * 12.0, 512.0, "float32"));
        assert!(over > 1.2 * full, "{full} {over}");
    }

    #[test]
    fn shapes_follow_from_work() {
        let found = Product::from_work(2.0 * 4096.0 * 768.0 * 512.0, 512.0 * (4096.0 + 768.0), 4096.0 * 768.0);
        for (found, expected) in [(found.rows, 4096.0), (found.columns, 768.0), (found.sum, 512.0)] {
            assert!((found - expected).abs() < 1.0, "{found} {expected}");
        }
        let found =
            Product::many_from_work(96.0 * 2.0 * 512.0 * 512.0 * 64.0, 96.0 * 64.0 * 1024.0, 96.0 * 512.0 * 512.0);
        assert!((found.rows - 512.0).abs() < 1.0 && (found.count - 96.0).abs() < 0.1, "{found:?}");
        // Figures that no product has must not give times that are no numbers.
        let device = Device::find("H200", None).unwrap();
        let speed = Speed { flops: device.speed("float32"), units: false };
        for (flops, read, written) in [(0.0, 0.0, 0.0), (1e9, 0.0, 4.0), (1.0, 1e18, 1.0)] {
            for product in [Product::from_work(flops, read, written), Product::many_from_work(flops, read, written)] {
                assert!(product.us(speed, &device).is_finite(), "{product:?}");
            }
        }
    }
}
