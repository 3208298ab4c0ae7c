//! Arithmetic of the hierarchical all-reduce: the ranks that share memory, and the part of a buffer that each
//! of them sums. It sends nothing.
//!
//! A buffer has as many columns as the smallest host has ranks. On each host one rank sums a column over its
//! host's memory, then sums it with the ranks of the other hosts that have the same column, around a ring or in
//! rounds; then all ranks of a host copy the columns. So the network carries the bytes of a ring with one rank per
//! host, whatever the number of ranks.
//!
//! ```text
//!   host a                        host b
//!   rank 0  column 0 ◀──ring──▶  rank 2  column 0        2 hosts, 2 columns
//!   rank 1  column 1 ◀──ring──▶  rank 3  column 1        rank 4, of host b too, has none and only copies
//! ```

use std::ops::Range;

use super::ring::part;

/// The ranks of each host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Hosts(Vec<Vec<usize>>);

/// One rank's position among the hosts.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Seat<'h> {
    /// The ranks of its host, ascending.
    pub(super) host: &'h [usize],
    /// The column that it sums; `None` if it only copies.
    pub(super) column: Option<usize>,
    /// The ranks that have the same column, by host.
    pub(super) ring: Vec<usize>,
}

impl Hosts {
    /// Groups ranks by host, given the ranks that each one shares memory with, itself included. Returns
    /// `None` if sharing is not mutual, or no two ranks share.
    pub(super) fn new(shares_with: &[Vec<usize>]) -> Option<Self> {
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for (rank, host) in shares_with.iter().enumerate() {
            if host.first() == Some(&rank) {
                hosts.push(host.clone());
            }
        }
        let said = |rank: &usize, host: &Vec<usize>| shares_with.get(*rank) == Some(host);
        let agree = hosts
            .iter()
            .all(|host| host.iter().all(|rank| said(rank, host)));
        let all = hosts.iter().map(Vec::len).sum::<usize>() == shares_with.len();
        (agree && all && hosts.len() < shares_with.len()).then_some(Self(hosts))
    }

    /// Returns the number of columns of a buffer.
    pub(super) fn columns(&self) -> usize {
        self.0.iter().map(Vec::len).min().unwrap_or(1)
    }

    /// Returns the range of a column in a buffer of `numbers` numbers.
    pub(super) fn column(&self, numbers: usize, column: usize) -> Range<usize> {
        part(numbers, self.columns(), column)
    }

    /// Returns the position of a rank.
    pub(super) fn seat(&self, rank: usize) -> Seat<'_> {
        let host = self.0.iter().find(|host| host.contains(&rank));
        let host = host.map_or(&[][..], Vec::as_slice);
        let column = host.iter().position(|of| *of == rank);
        let column = column.filter(|column| *column < self.columns());
        let ring = column.map(|column| self.0.iter().map(|host| host[column]).collect());
        Seat {
            host,
            column,
            ring: ring.unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(hosts: &[&[usize]]) -> Option<Hosts> {
        let ranks = hosts.iter().map(|host| host.len()).sum();
        let mut shares_with = vec![vec![]; ranks];
        for host in hosts {
            host.iter()
                .for_each(|rank| shares_with[*rank] = host.to_vec());
        }
        Hosts::new(&shares_with)
    }

    #[test]
    fn every_column_is_added_up_once_a_host_and_once_by_all() {
        for (hosts, columns) in [
            (&[&[0, 2][..], &[1, 3]][..], 2),
            (&[&[0, 1, 2], &[3, 4]], 2),
            (&[&[0], &[1, 2, 3], &[4, 5]], 1),
            (&[&[0, 1, 2]], 3),
        ] {
            let found = of(hosts).unwrap();
            assert_eq!(found.columns(), columns);
            let mut end = 0;
            for column in 0..columns {
                let numbers = found.column(1000, column);
                assert_eq!(numbers.start, end);
                end = numbers.end;
                let mut ring = vec![];
                for host in hosts {
                    let has = |rank: &&usize| found.seat(**rank).column == Some(column);
                    let who: Vec<_> = host.iter().filter(has).collect();
                    assert_eq!(who.len(), 1);
                    ring.push(*who[0]);
                }
                assert!(ring.iter().all(|rank| found.seat(*rank).ring == ring));
            }
            assert_eq!(end, 1000);
            for host in hosts {
                assert!(host.iter().all(|rank| found.seat(*rank).host == *host));
            }
        }
        let found = of(&[&[0, 1, 2], &[3, 4]]).unwrap();
        assert_eq!((found.seat(2).column, found.seat(2).ring), (None, vec![]));
    }

    #[test]
    fn ranks_must_say_the_same_of_each_other() {
        assert_eq!(of(&[&[0], &[1]]), None, "nobody shares");
        assert_eq!(Hosts::new(&[vec![0, 1], vec![1]]), None);
        assert_eq!(Hosts::new(&[vec![0, 1], vec![0, 1], vec![1, 2]]), None);
        assert_eq!(Hosts::new(&[vec![0, 1], vec![]]), None);
        assert_eq!(Hosts::new(&[vec![0, 7], vec![1]]), None);
        assert_eq!(Hosts::new(&[vec![0, 0], vec![1]]), None);
    }
}
