//! The optimizer's step over all weights at once, on a device: the host's arithmetic in tensors.

use burn::tensor::Tensor;
use burn::tensor::backend::Backend;
use volley_proto::spec::Rule;

use crate::network::Update;

/// Clips a gradient by its norm, then by value.
pub(super) fn clipped<B: Backend>(update: &Update<'_>, mut gradient: Tensor<B, 1>) -> Tensor<B, 1> {
    if let Some(most) = update.clip_norm {
        let norm = gradient.clone().square().sum().sqrt();
        let most = norm.full_like(most);
        gradient = gradient * (most.clone() / norm.max_pair(most));
    }
    if let Some(most) = update.clip_value {
        gradient = gradient.clamp(-most, most);
    }
    gradient
}

/// Updates the weights. `slots` is the optimizer state; `penalized` is 1 for penalized weights and 0 for the others.
pub(super) fn apply<B: Backend>(
    update: &Update<'_>,
    penalized: &Tensor<B, 1>,
    weights: &mut Tensor<B, 1>,
    gradient: Tensor<B, 1>,
    slots: &mut [Tensor<B, 1>],
) {
    let rate = update.learn_rate as f32;
    let penalty = |of: f64| penalized.clone().mul_scalar(of as f32);
    let w = weights.clone();
    let (average, slots) = match (update.kept, slots.split_last_mut()) {
        (Some(kept), Some((average, slots))) => (Some((kept, average)), slots),
        (_, _) => (None, slots),
    };
    // FTRL has its penalties in the formula of its weights.
    let with_penalties = |mut g: Tensor<B, 1>| {
        if update.l2 != 0.0 {
            g = g + penalty(2.0 * update.l2) * w.clone();
        }
        if update.l1 != 0.0 {
            g = g + penalty(update.l1) * w.clone().sign();
        }
        g
    };
    *weights = match (update.rule, slots) {
        (Rule::Adam { weight_decay, .. }, [mean, square]) => {
            let step = update.adam().expect("the rule is Adam's");
            let g = with_penalties(gradient);
            let m = mean.clone().mul_scalar(step.keep[0]) + g.clone().mul_scalar(step.take[0]);
            let v = square.clone().mul_scalar(step.keep[1]) + g.square().mul_scalar(step.take[1]);
            (*mean, *square) = (m.clone(), v.clone());
            let w = match *weight_decay == 0.0 {
                true => w,
                false => w * (penalty(f64::from(step.decayed) - 1.0)).add_scalar(1.0),
            };
            w - m.mul_scalar(step.rate) / v.sqrt().add_scalar(step.epsilon)
        }
        (Rule::Sgd { .. }, []) => w.clone() - with_penalties(gradient).mul_scalar(rate),
        (Rule::Sgd { momentum, nesterov }, [velocity]) => {
            let momentum = *momentum as f32;
            let change = with_penalties(gradient).mul_scalar(rate);
            let v = velocity.clone().mul_scalar(momentum) - change.clone();
            *velocity = v.clone();
            match nesterov {
                true => w.clone() + v.mul_scalar(momentum) - change,
                false => w.clone() + v,
            }
        }
        (Rule::Adagrad { epsilon, .. }, [square]) => {
            let g = with_penalties(gradient);
            let a = square.clone() + g.clone().square();
            *square = a.clone();
            w.clone() - g.mul_scalar(rate) / a.add_scalar(*epsilon as f32).sqrt()
        }
        (
            Rule::RmsProp {
                rho,
                momentum,
                epsilon,
            },
            [square, velocity @ ..],
        ) => {
            let [rho, momentum, epsilon] = [*rho, *momentum, *epsilon].map(|x| x as f32);
            let g = with_penalties(gradient);
            let a = square.clone().mul_scalar(rho) + g.clone().square().mul_scalar(1.0 - rho);
            *square = a.clone();
            let mut change = g.mul_scalar(rate) / a.add_scalar(epsilon).sqrt();
            if let Some(velocity) = velocity.first_mut() {
                change = velocity.clone().mul_scalar(momentum) + change;
                *velocity = change.clone();
            }
            w.clone() - change
        }
        (Rule::Ftrl { .. }, [square, linear]) => {
            let before = square.clone().sqrt();
            let n = square.clone() + gradient.clone().square();
            let root = n.clone().sqrt();
            let z =
                linear.clone() + gradient - (root.clone() - before).div_scalar(rate) * w.clone();
            (*square, *linear) = (n, z.clone());
            let most = penalty(update.l1);
            let clamped = z.clone().min_pair(most.clone()).max_pair(most.neg());
            (clamped - z) / (root.div_scalar(rate) + penalty(2.0 * update.l2))
        }
        (rule, slots) => unreachable!("{} slots of {rule:?}", slots.len()),
    };
    if let Some((kept, average)) = average {
        let own = weights.clone().mul_scalar(1.0 - kept);
        *average = average.clone().mul_scalar(kept) + own;
    }
}
