"""Views: the only place that makes text or pictures out of values.

Flow: values of every other room -> text, HTML, SVG, files of other tools.

Read in this order:

- parts: numbers, tables, html, svg;
- plans: claim_text, plan_tables, diff_tables, plan_figure, profile_text;
- the page of a plan: report, of report_parts, report_tables, report_sums, report_what_if; its style
  and script lie in ``page/``;
- schedules: schedule_text, gantt, chrome_trace;
- the demo, the doctor, load tests: demo, doctor_text, serve_bench_text, latency_figure;
- TensorBoard: tensorboard.
"""
