(() => {
  // A large cluster for the page's tests: answers in the scheduler's place, with 1,000 jobs, 100 executors, a query of 43
  // stages with 100,000 tasks, and three runs of a model.
  const begun = Date.now() - 600e3;
  const states = ['succeeded', 'failed', 'cancelled', 'running'];
  const jobs = Array.from({ length: 1000 }, (_, at) => ({
    job_id: `job${String(at).padStart(4, '0')}`, name: `SELECT ${at} FROM sales`, statement: null, owner: ['ada', 'grace'][at % 2],
    state: states[at % 4], attempts: 1, attempt_ids: [], submitted: begun - at * 60e3, ended: at % 4 === 3 ? null : begun - at * 60e3 + 5e3,
    seconds: (at * 37) % 100, train_id: at % 10 === 0 ? `train${at}` : null, queue: 'default', priority: 0, waits: null, error: null }));
  const executor = (at) => ({
    executor_id: `executor-${at}`, host: `10.0.0.${at}`, port: 40000, role: 'any', slots: 8, free_slots: at % 9 === 8 ? 0 : 8 - at % 9, ranks: at % 2, device: 'cpu',
    gpus: [], free_gpus: 0, memory_bytes: 8 * 2 ** 30, reserved_bytes: 2 ** 30, rank_bytes: at % 2 ? 2 ** 29 : 0, process_bytes: 3 * 2 ** 30, machine_bytes: 16 * 2 ** 30,
    cpu_cores: at % 8, rank_memory_bytes: 2 ** 30, version: '0', since: begun, draining: at === 3, running: [] });
  const stage = (id, inputs) => ({
    job_id: 'job0000', train_id: null, stage_id: id, kind: 'query', state: id < 42 ? 'succeeded' : 'running', partitions: 100000, partitions_done: id < 42 ? 100000 : 500,
    running: id < 42 ? 0 : 800, attempts: 1, tasks_failed: 0, started: begun + id * 1e3, ended: id < 42 ? begun + id * 1e3 + 9e3 : null,
    rows_read: 1e9, bytes_read: 2 ** 40, rows: 1e6, rows_written: null, bytes: 2 ** 30, spilled_bytes: id === 30 ? 2 ** 34 : 0, tasks_done: 100000, seconds: 9,
    fastest_seconds: 0.1, median_seconds: 0.4, slowest_seconds: 8.5, task_histogram: Array.from({ length: 20 }, (_, at) => at === 19 ? 1 : 5000 - at * 100),
    executors: Array.from({ length: 100 }, (_, at) => ({ executor_id: `executor-${at}`, tasks: 1000, running: 0, started: begun + id * 1e3, ended: begun + id * 1e3 + 9e3, seconds: 500 })),
    inputs, description: inputs.length ? `join sales and ${id} more with stores on store, date, partly group by region` : 'read sales, filter by date', operator: 'HashJoinExec', plan: '',
    operators: [{ depth: 0, text: 'ShuffleWriterExec: partitioning: Hash([store@0], 16)', rows: 1e6, seconds: 1, metrics: 'output_rows=1000000' },
      { depth: 1, text: `HashJoinExec: on=[(store@0, store@0)], projection=[${Array.from({ length: 60 }, (_, at) => `column_${at}@${at}`).join(', ')}]`, rows: 1e6, seconds: 5, metrics: 'output_rows=1000000' }] });
  const stages = Array.from({ length: 43 }, (_, at) => stage(at + 1, at < 22 ? [] : [2 * (at - 22) + 1, 2 * (at - 22) + 2]));
  const runs = [0, 10, 20].map((at) => ({
    train_id: `train${at}`, model: 'sales', state: 'finished', generation: 1, ranks: 2, epoch: 10, epochs: 10, step: 100, steps_per_epoch: 100, steps: 1000,
    loss: 0.1, eval_loss: 0.2, rows_per_second: null, eta_seconds: null, started: begun - at * 60e3, reason: null }));
  const train = (of) => of.get('train') ?? (of.get('job') === 'job0000' ? 'train0' : null);
  const tables = {
    jobs: (of) => jobs.filter((job) => (!of.get('job') || job.job_id === of.get('job')) && (!of.get('train') || job.train_id === of.get('train')))
      .map((job) => ({ ...job, statement: of.size ? `CREATE MODEL sales OPTIONS (model_type = 'dnn_regressor', hidden_units = [64, 32], learn_rate = ${job.job_id === 'job0010' ? '0.1' : '0.01'}) AS SELECT * FROM sales` : null })),
    executors: (of) => Array.from({ length: 100 }, (_, at) => executor(at)).filter(({ executor_id }) => !of.get('executor') || of.get('executor') === executor_id),
    stages: () => stages,
    training_runs: (of) => runs.filter(({ train_id }) => !train(of) || train_id === train(of)),
    training_epochs: (of) => Array.from({ length: 10 }, (_, at) => ({ train_id: train(of), model: 'sales', epoch: at + 1, loss: 1 / (at + 1), eval_loss: 1.2 / (at + 1), eval_mae: 10 - at,
      eval_rmse: null, eval_r2: at / 10, eval_accuracy: null, eval_rmspe: null, eval_interval_coverage: null, labels: [], seconds: 2, compute_seconds: 1, reduce_seconds: 0.5, rows: 1000, steps: 100 * (at + 1) })),
    // The first losses are far above the others.
    training_steps: (of) => of.get('after') || !train(of) ? [] : Array.from({ length: 1000 }, (_, at) => ({ train_id: train(of), model: 'sales', generation: 1, epoch: 1, steps: at,
      loss: at < 3 ? 5000 : 1 / (1 + at / 100), rows_per_second: 1000, at: begun + at })),
  };
  window.fetch = async (path) => {
    const url = new URL(path, location.href);
    const rows = (tables[url.pathname.split('/').pop()] ?? (() => []))(url.searchParams);
    return { status: 200, ok: true, json: async () => JSON.parse(JSON.stringify(rows)) };
  };
  return true;
})()
