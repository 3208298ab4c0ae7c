//! Vital signs of an executor on their way to the scheduler, and the checks of what arrives.

use super::Vitals;
use crate::wire::MeasureRequest;

impl From<Vitals> for MeasureRequest {
    /// Leaves out the time, which is the scheduler's.
    fn from(vitals: Vitals) -> Self {
        Self {
            executor_id: vitals.executor_id,
            tasks: vitals.tasks,
            ranks: vitals.ranks,
            reserved_bytes: vitals.reserved_bytes,
            rank_bytes: vitals.rank_bytes,
            process_bytes: vitals.process_bytes,
            machine_bytes: vitals.machine_bytes,
            cpu_cores: vitals.cpu_cores,
            disk_read_rate: vitals.disk_read_rate,
            disk_write_rate: vitals.disk_write_rate,
            network_in_rate: vitals.network_in_rate,
            network_out_rate: vitals.network_out_rate,
            served_rate: vitals.served_rate,
            disk_free_bytes: vitals.disk_free_bytes,
        }
    }
}

impl From<MeasureRequest> for Vitals {
    /// Leaves out rates that are not finite: JSON has no form for them.
    fn from(request: MeasureRequest) -> Self {
        let rate = |rate: Option<f64>| rate.filter(|rate| rate.is_finite());
        Self {
            executor_id: request.executor_id,
            at: 0,
            tasks: request.tasks,
            ranks: request.ranks,
            reserved_bytes: request.reserved_bytes,
            rank_bytes: request.rank_bytes,
            process_bytes: request.process_bytes,
            machine_bytes: request.machine_bytes,
            cpu_cores: rate(request.cpu_cores),
            disk_read_rate: rate(request.disk_read_rate),
            disk_write_rate: rate(request.disk_write_rate),
            network_in_rate: rate(request.network_in_rate),
            network_out_rate: rate(request.network_out_rate),
            served_rate: rate(request.served_rate),
            disk_free_bytes: request.disk_free_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn vital_signs_arrive_as_they_were_sent() {
        let vitals = Vitals {
            executor_id: "e".into(),
            tasks: 1,
            ranks: 2,
            reserved_bytes: 3,
            rank_bytes: Some(10),
            process_bytes: Some(4),
            machine_bytes: None,
            cpu_cores: Some(0.5),
            disk_read_rate: Some(6.0),
            disk_write_rate: Some(7.0),
            network_in_rate: Some(8.0),
            network_out_rate: None,
            served_rate: Some(9.0),
            disk_free_bytes: Some(11),
            ..Vitals::default()
        };
        let request = MeasureRequest::from(vitals.clone());
        assert_eq!(Vitals::from(request.clone()), vitals);
        let broken = MeasureRequest {
            cpu_cores: Some(f64::NAN),
            served_rate: Some(f64::INFINITY),
            ..request
        };
        let expected = Vitals {
            cpu_cores: None,
            served_rate: None,
            ..vitals
        };
        assert_eq!(Vitals::from(broken), expected);
    }
}
