//! Keys and values of what rows have read so far, for generation.

use tch::{Device, Kind, Tensor};

use super::config::Config;

/// A cache with room for a number of rows of a number of tokens. Rows in use stand at its beginning.
pub struct Cache {
    /// For each layer, of shape (rows, key-value heads, tokens, head).
    keys: Vec<Tensor>,
    values: Vec<Tensor>,
    lengths: Vec<i64>,
}

impl Cache {
    /// An empty cache.
    pub fn new(config: &Config, rows: i64, tokens: i64, device: Device) -> Self {
        let room = || Tensor::zeros([rows, config.kv_heads, tokens, config.head], (Kind::Float, device));
        Self {
            keys: (0..config.layers).map(|_| room()).collect(),
            values: (0..config.layers).map(|_| room()).collect(),
            lengths: vec![0; rows as usize],
        }
    }

    /// Tokens a row has read.
    pub fn length(&self, row: i64) -> i64 {
        self.lengths[row as usize]
    }

    /// Empties a row.
    pub fn clear(&mut self, row: i64) {
        self.lengths[row as usize] = 0;
    }

    /// Puts the content of row `from` into row `to`.
    pub fn copy(&mut self, from: i64, to: i64) {
        let length = self.lengths[from as usize];
        for tensor in self.keys.iter().chain(&self.values) {
            let part = |row: i64| tensor.narrow(0, row, 1).narrow(2, 0, length);
            part(to).copy_(&part(from));
        }
        self.lengths[to as usize] = length;
    }

    pub(super) fn advance(&mut self, row: i64, tokens: i64) {
        self.lengths[row as usize] += tokens;
    }

    /// Writes keys and values of one row from `start` on; returns all of the row up to there.
    pub(super) fn write_row(&mut self, layer: i64, row: i64, start: i64, k: &Tensor, v: &Tensor) -> (Tensor, Tensor) {
        let count = k.size()[2];
        let write = |room: &Tensor, new: &Tensor| {
            let row = room.narrow(0, row, 1);
            row.narrow(2, start, count).copy_(new);
            row.narrow(2, 0, start + count)
        };
        (write(&self.keys[layer as usize], k), write(&self.values[layer as usize], v))
    }

    /// Writes keys and values of one token for each of the first rows, at the places given; returns these rows up to
    /// the longest.
    pub(super) fn write_step(
        &mut self,
        layer: i64,
        places: &Tensor,
        longest: i64,
        k: &Tensor,
        v: &Tensor,
    ) -> (Tensor, Tensor) {
        let (rows, heads, _, head) = k.size4().expect("keys have four dimensions");
        let index = places.view([rows, 1, 1, 1]).expand([rows, heads, 1, head], false);
        let write = |room: &Tensor, new: &Tensor| {
            let mut rows_of = room.narrow(0, 0, rows);
            let _ = rows_of.scatter_(2, &index, new);
            rows_of.narrow(2, 0, longest)
        };
        (write(&self.keys[layer as usize], k), write(&self.values[layer as usize], v))
    }
}
