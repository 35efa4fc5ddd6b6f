"""What a run was, from its directory: as one HTML page, beside other runs, and where two runs part; no torch.

run_records     everything that a run directory says, with what could not be read
metric_curves   metrics.jsonl as curves, in bounded memory
curve           one curve, thinned while it is read
attempts        the attempts of a run, from its events
rank_times      the seconds of each rank, by part
config_values   a run's config, each value with its origin
axis            scales, ticks, and figures as text
markup          HTML that escapes what it is given
line_chart      curves as SVG
time_charts     attempts and where their time went, as SVG and tables
compare_runs    runs beside each other
diff_runs       the first record in which two runs differ
data_identity   which data a run reads in which order
step_samples    what the samples of a step follow from
run_inputs      what determines the results of a run
sparkline       a curve as one line of text
page            the whole page
page_sections   its sections
page_style      its style sheet
"""
