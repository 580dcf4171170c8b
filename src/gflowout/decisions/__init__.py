"""From predictions to decisions: calibration, conformal sets, selective prediction, alarms."""
