//! Tests of training as a session starts it.

use volley_engine::optimized;

use super::*;
use crate::sql::Kind;
use crate::testing::{on_a_deep_stack, session};

#[test]
fn reads_only_what_it_needs() {
    on_a_deep_stack(async {
        let (session, _dir) = session().await;
        let create = "CREATE MODEL m OPTIONS (input_label_cols = ['Sales'], \
                      categorical = ['Store'], shard_by = ['Id'], \
                      data_split_method = 'no_split') AS SELECT * FROM sales";
        let Kind::CreateModel(create) = session.parse(create).unwrap().remove(0).kind else {
            panic!()
        };
        let (target, rows, options) = session.target(*create).await.unwrap();
        let state = session.context().state();
        let (plan, _) = plan_of(&rows, options, target, &state).unwrap();
        let plan = optimized(&plan, &session.context().state()).unwrap();
        let shown = plan.display_indent().to_string();
        assert!(
            shown.starts_with("Train: model=m, ranks=All, shards=60"),
            "{shown}"
        );
        assert!(shown.contains("projection=[Id, Store, Sales]"), "{shown}");
    });
}

#[test]
fn starts_from_what_the_store_holds() {
    on_a_deep_stack(async {
        let (session, _dir) = session().await;
        let newer = crate::testing::manifest("known");
        session.store().publish(1, newer, Vec::new()).await.unwrap();
        let start = async |model: &str, resume, warm_start: Option<WarmStart>| {
            let mut options = TrainOptions {
                resume,
                warm_start,
                ..Default::default()
            };
            session.start(&mut options, &model.parse().unwrap()).await
        };
        let named = |text: &str| Some(text.parse::<WarmStart>().unwrap());
        assert_eq!(start("m", false, None).await.unwrap(), Start::Fresh);
        assert_eq!(start("m", true, None).await.unwrap(), Start::Resume);
        for (model, from, version) in [
            ("known", Some(WarmStart::SameModel), 2),
            ("m", named("known"), 2),
            ("m", named("known@1"), 1),
        ] {
            let Start::Warm(found) = start(model, false, from).await.unwrap() else {
                panic!("{model}")
            };
            assert_eq!((found.name.as_str(), found.version), ("known", version));
        }
        for (resume, from, message) in [
            (false, named("knwon"), "did you mean \"known\"?"),
            (false, named("known@7"), "has no version 7: it has 1, 2"),
            (
                false,
                Some(WarmStart::SameModel),
                "model m has no version yet",
            ),
            (true, named("known"), "not with resume = true"),
        ] {
            let error = start("m", resume, from).await.unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
    });
}

#[test]
fn finds_what_a_run_has_published() {
    on_a_deep_stack(async {
        let (session, _dir) = session().await;
        let mine = crate::testing::manifest("known");
        let (name, id) = (mine.spec.model.clone(), mine.spec.train_id);
        let found = async |newest| session.published_by(&name, id, newest).await.unwrap();
        assert_eq!(found(Some(1)).await, None);
        session.store().publish(1, mine, Vec::new()).await.unwrap();
        let other = crate::testing::manifest("known");
        session.store().publish(1, other, Vec::new()).await.unwrap();
        assert_eq!(found(Some(1)).await, Some(2));
        assert_eq!(found(None).await, Some(2));
        assert_eq!(found(Some(2)).await, None);
    });
}

#[test]
fn checks_before_it_trains() {
    on_a_deep_stack(async {
        let (session, _dir) = session().await;
        let run = async |sql: &str| {
            let statement = session.parse(sql).unwrap().remove(0);
            session.run(statement).await
        };
        let options = "OPTIONS (input_label_cols = ['Sales']) AS SELECT * FROM sales";
        let error = run(&format!("CREATE MODEL known {options}"))
            .await
            .unwrap_err();
        assert!(
            matches!(error, Error::ModelExists { version: 1, .. }),
            "{error}"
        );
        let output = run(&format!("CREATE MODEL IF NOT EXISTS known {options}"))
            .await
            .unwrap();
        assert!(output.message.unwrap().contains("version 1"));
        let typo = "CREATE MODEL m OPTIONS (input_label_cols = ['Slaes']) AS SELECT * FROM sales";
        let error = run(typo).await.unwrap_err();
        assert!(
            error.to_string().ends_with("did you mean \"Sales\"?"),
            "{error}"
        );
    });
}
