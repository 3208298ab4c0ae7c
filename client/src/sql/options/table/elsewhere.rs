//! Options of other systems, and what takes their place.

const NO_TREES: &str = "there are no trees: see \"From LightGBM and XGBoost\" in docs/coming-from.md for what takes their place";
const NO_SEARCH: &str = "there is no hyperparameter search: train a model for each value, as \"Tune it\" in docs/models.md does";

/// Options by their lower-case names, each with an explanation.
pub(super) const ELSEWHERE_ALONE: &[(&str, &str)] = &[
    ("num_trials", NO_SEARCH),
    ("max_parallel_trials", NO_SEARCH),
    ("hparam_tuning_algorithm", NO_SEARCH),
    ("hparam_tuning_objectives", NO_SEARCH),
    ("weight_col", "use sample_weight_col"),
    ("weight", "use sample_weight_col"),
    ("weights", "use sample_weight_col"),
    ("split_method", "use data_split_method"),
    ("split_col", "use data_split_col"),
    ("layers", "use hidden_units, or network to name each layer"),
    (
        "features",
        "use categorical and continuous, which name the features",
    ),
    ("n_estimators", NO_TREES),
    ("num_boost_round", NO_TREES),
    ("num_iterations", NO_TREES),
    ("num_parallel_tree", NO_TREES),
    ("num_leaves", NO_TREES),
    ("max_depth", NO_TREES),
    ("max_tree_depth", NO_TREES),
    ("min_child_weight", NO_TREES),
    ("min_tree_child_weight", NO_TREES),
    ("min_data_in_leaf", NO_TREES),
    ("subsample", NO_TREES),
    ("colsample_bytree", NO_TREES),
    ("tree_method", NO_TREES),
    ("booster_type", NO_TREES),
    ("boosting_type", NO_TREES),
];

/// Advice on a model type that does not exist.
pub(super) fn instead_of_model_type(name: &str) -> &'static str {
    let is_tree = ["tree", "forest", "boost", "gbm"];
    match is_tree.iter().any(|part| name.contains(part)) {
        true => {
            "there are no trees, use 'dnn_regressor', 'dnn_classifier', 'linear_reg' or 'logistic_reg': see \"From LightGBM \
             and XGBoost\" in docs/coming-from.md"
        }
        false => "use 'dnn_regressor', 'dnn_classifier', 'linear_reg' or 'logistic_reg'",
    }
}
