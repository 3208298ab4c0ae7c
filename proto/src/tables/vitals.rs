//! Vital signs of an executor on their way to the scheduler, and the checks of what arrives.

use super::Vitals;
use crate::wire::MeasureRequest;

impl From<Vitals> for MeasureRequest {
    /// Leaves out the time, which is the scheduler's.
    fn from(vitals: Vitals) -> Self {
        let Vitals {
            executor_id,
            at: _,
            tasks,
            ranks,
            reserved_bytes,
            rank_bytes,
            process_bytes,
            machine_bytes,
            cpu_cores,
            disk_read_rate,
            disk_write_rate,
            network_in_rate,
            network_out_rate,
            served_rate,
            disk_free_bytes,
        } = vitals;
        Self {
            executor_id,
            tasks,
            ranks,
            reserved_bytes,
            rank_bytes,
            process_bytes,
            machine_bytes,
            cpu_cores,
            disk_read_rate,
            disk_write_rate,
            network_in_rate,
            network_out_rate,
            served_rate,
            disk_free_bytes,
        }
    }
}

impl From<MeasureRequest> for Vitals {
    /// Leaves out rates that are not finite: JSON has no form for them.
    fn from(request: MeasureRequest) -> Self {
        let MeasureRequest {
            executor_id,
            tasks,
            ranks,
            reserved_bytes,
            rank_bytes,
            process_bytes,
            machine_bytes,
            cpu_cores,
            disk_read_rate,
            disk_write_rate,
            network_in_rate,
            network_out_rate,
            served_rate,
            disk_free_bytes,
        } = request;
        let rate = |rate: Option<f64>| rate.filter(|rate| rate.is_finite());
        Self {
            executor_id,
            at: 0,
            tasks,
            ranks,
            reserved_bytes,
            rank_bytes,
            process_bytes,
            machine_bytes,
            cpu_cores: rate(cpu_cores),
            disk_read_rate: rate(disk_read_rate),
            disk_write_rate: rate(disk_write_rate),
            network_in_rate: rate(network_in_rate),
            network_out_rate: rate(network_out_rate),
            served_rate: rate(served_rate),
            disk_free_bytes,
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
