//! A layer of one's own, `custom('square')`: y = x². In a cluster of processes, the executor program has it: see
//! `examples/custom-layer`.

use std::path::Path;

use volley::Estimator;
use volley::spec::{Device, Layer};
use volley::standalone::custom::*;
use volley::standalone::{Standalone, StandaloneConfig};

use crate::Result;

/// The layer, and its operation for rows of this many numbers.
#[derive(Debug, Default)]
struct Square(usize);

impl CustomLayer for Square {
    fn build(&self, width: usize, _arguments: &[f64]) -> Result<Box<dyn CustomOperation>> {
        Ok(Box::new(Self(width)))
    }
}

impl CustomOperation for Square {
    fn width(&self) -> usize {
        self.0
    }

    fn forward(&self, batch: CustomBatch<'_>, y: &mut [f32]) {
        y.iter_mut().zip(batch.x).for_each(|(y, x)| *y = x * x);
    }

    fn backward(
        &self,
        batch: CustomBatch<'_>,
        _y: &[f32],
        dy: &[f32],
        dx: &mut [f32],
        _gradients: Option<&mut [&mut [f32]]>,
    ) {
        let known = batch.x.iter().zip(dy);
        dx.iter_mut()
            .zip(known)
            .for_each(|(dx, (x, dy))| *dx = 2.0 * x * dy);
    }
}

pub(crate) async fn run(folder: &Path) -> Result {
    check_layer(Square::default(), 3, &[])?; // its gradient is right
    let config = StandaloneConfig {
        layers: CustomLayers::new().with("square", Square::default()),
        device: Device::Cpu,
        ..StandaloneConfig::default()
    };
    let cluster = Standalone::start(config).await?;
    let session = crate::connect(&cluster, &folder.join("own")).await?;
    let rows = "SELECT value / 50.0 - 1 AS x, power(value / 50.0 - 1, 2) AS y FROM range(100)";
    let (name, arguments) = ("square".to_owned(), vec![]);
    let model = Estimator::new("parabola")
        .label("y")
        .continuous(["x"])
        .layers([Layer::Dense(4), Layer::Custom { name, arguments }])
        .epochs(2)
        .fit(&session, session.sql(rows).await?)
        .await?;
    assert!(model.history().iter().all(|epoch| epoch.loss.is_finite()));
    cluster.stop().await;
    Ok(())
}
