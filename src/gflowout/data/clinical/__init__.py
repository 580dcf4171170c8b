"""Death in intensive care from the drugs of the first 48 hours, across hospitals (eICU).

:func:`load` does everything; the steps can be used one by one. Needs pandas (the extra ``data``)
when it runs, not when it is imported.
"""

from gflowout.data.clinical.design import ClinicalSet, Covariates, Vocabulary, balanced
from gflowout.data.clinical.drugs import exposures, normalise
from gflowout.data.clinical.pipeline import ClinicalSplit, Summary, load, summarise, summary
from gflowout.data.clinical.split import (
    HospitalSplit,
    between_hospitals,
    hold_out_patients,
    leave_hospital_out,
)
from gflowout.data.clinical.tables import Tables, load_tables, read_tables, stay_table

__all__ = [
    "ClinicalSet",
    "ClinicalSplit",
    "Covariates",
    "HospitalSplit",
    "Summary",
    "Tables",
    "Vocabulary",
    "balanced",
    "between_hospitals",
    "exposures",
    "hold_out_patients",
    "leave_hospital_out",
    "load",
    "load_tables",
    "normalise",
    "read_tables",
    "stay_table",
    "summarise",
    "summary",
]
