//! A custom layer, `custom('square')`: y = x². For a cluster of processes, see `examples/custom-layer`.

use volley::Estimator;
use volley::spec::{Device, Layer};
use volley::standalone::custom::*;
use volley::standalone::{Standalone, StandaloneConfig};

use crate::Result;

#[derive(Debug, Default)]
struct Square(usize); // numbers per row

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
        let slopes = batch.x.iter().map(|x| 2.0 * x);
        let gradients = slopes.zip(dy).map(|(slope, dy)| slope * dy);
        dx.iter_mut().zip(gradients).for_each(|(dx, g)| *dx = g);
    }
}

pub(crate) async fn run(folder: &std::path::Path) -> Result {
    check_layer(Square::default(), 3, &[])?; // its gradient is right
    let config = StandaloneConfig {
        layers: CustomLayers::new().with("square", Square::default()),
        ..StandaloneConfig::default()
    };
    let cluster = Standalone::start(config).await?;
    let session = crate::connect(&cluster, &folder.join("own")).await?;
    let rows = "SELECT value / 50.0 - 1 AS x, power(value / 50.0 - 1, 2) AS y FROM range(100)";
    let (name, arguments) = ("square".to_owned(), vec![]);
    let layers = [Layer::Dense(4), Layer::Custom { name, arguments }];
    let network = Estimator::new("parabola").layers(layers).label("y");
    let training = network.epochs(2).device(Device::Cpu); // custom layers compute on CPUs
    let model = training.fit(&session, session.sql(rows).await?).await?;
    assert!(model.history().iter().all(|epoch| epoch.loss.is_finite()));
    cluster.stop().await;
    Ok(())
}
