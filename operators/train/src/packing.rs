//! Packing: which samples go through the model together.
//!
//! The samples of an optimizer step stand one after the other in *packs*, without padding between or behind them.
//! Positions begin anew with each sample and no sample sees another ([`crate::model::Sequences`]), so a pack gives what
//! its samples give apart. Cutting a step into packs bounds the memory it takes; what is trained stays the same.

/// Numbers of the samples of each pack: best fit, longest first (Johnson, "Near-optimal bin packing algorithms", 1973).
///
/// Each sample goes whole into the fullest pack it still fits. One longer than `capacity` goes alone. Equal lengths keep
/// the order of their numbers, so the same lengths always give the same packs.
pub fn best_fit(lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
    let mut order: Vec<usize> = (0..lengths.len()).collect();
    order.sort_by_key(|sample| std::cmp::Reverse(lengths[*sample]));
    let mut packs: Vec<(usize, Vec<usize>)> = Vec::new();
    for sample in order {
        let length = lengths[sample];
        let fitting = packs.iter_mut().filter(|(filled, _)| filled + length <= capacity);
        // Of equally full packs the first.
        match fitting.reduce(|best, pack| if pack.0 > best.0 { pack } else { best }) {
            Some((filled, samples)) => {
                *filled += length;
                samples.push(sample);
            }
            None => packs.push((length, vec![sample])),
        }
    }
    packs.into_iter().map(|(_, samples)| samples).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packed(lengths: &[usize], capacity: usize) -> Vec<Vec<usize>> {
        let of = |pack: &Vec<usize>| pack.iter().map(|sample| lengths[*sample]).collect();
        best_fit(lengths, capacity).iter().map(of).collect()
    }

    /// Worked figures.
    #[test]
    fn each_sample_goes_where_it_fits_best() {
        assert_eq!(packed(&[7, 5, 4, 3, 2], 10), [vec![7, 3], vec![5, 4], vec![2]]);
        assert_eq!(packed(&[2, 3, 4, 5, 6, 7, 8], 10), [vec![8, 2], vec![7, 3], vec![6, 4], vec![5]]);
        assert_eq!(packed(&[6, 6, 4, 4, 3, 3, 2, 2], 10), [vec![6, 4], vec![6, 4], vec![3, 3, 2, 2]]);
        assert_eq!(best_fit(&[3, 12, 3], 6), [vec![1], vec![0, 2]], "too long for a pack: alone; ties by number");
        assert!(best_fit(&[], 10).is_empty());
    }

    #[test]
    fn every_sample_is_packed_once_and_no_pack_is_too_full() {
        let lengths: Vec<usize> = (0..500).map(|i| 1 + (i * 7919) % 300).collect();
        let packs = best_fit(&lengths, 1000);
        let mut all: Vec<usize> = packs.concat();
        all.sort_unstable();
        assert_eq!(all, (0..500).collect::<Vec<_>>());
        let filled = |pack: &Vec<usize>| pack.iter().map(|sample| lengths[*sample]).sum::<usize>();
        assert!(packs.iter().all(|pack| filled(pack) <= 1000));
        // At most 11/9 of the best possible, and a little.
        assert!(packs.len() <= lengths.iter().sum::<usize>().div_ceil(1000) * 11 / 9 + 1);
    }
}
