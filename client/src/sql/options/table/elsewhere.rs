//! Options of other systems, and what takes their place.

const NO_TREES: &str = "there are no trees: see \"From LightGBM and XGBoost\" in docs/coming-from.md for what takes their place";
const NO_SEARCH: &str = "there is no hyperparameter search: train a model for each value, as \"Tune it\" in docs/models.md does";

/// Options by their lower-case names, with an explanation.
pub(super) const ELSEWHERE_ALONE: &[(&str, &str)] = &[
    (
        "num_trials max_parallel_trials hparam_tuning_algorithm hparam_tuning_objectives",
        NO_SEARCH,
    ),
    ("weight_col weight weights", "use sample_weight_col"),
    ("split_method", "use data_split_method"),
    ("split_col", "use data_split_col"),
    ("layers", "use hidden_units, or network to name each layer"),
    (
        "features",
        "use categorical and continuous, which name the features",
    ),
    (
        "n_estimators num_boost_round num_iterations num_parallel_tree num_leaves max_depth max_tree_depth \
         min_child_weight min_tree_child_weight min_data_in_leaf subsample colsample_bytree tree_method booster_type boosting_type",
        NO_TREES,
    ),
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
