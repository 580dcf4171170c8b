"""Small tables in the published format of eICU, for the tests to write, to change and to break."""

import csv
import gzip
import io
from pathlib import Path

from gflowout.data import clinical

_HEADERS = {
    "patient": (
        "patientunitstayid,patienthealthsystemstayid,gender,age,ethnicity,hospitalid,wardid,"
        "apacheadmissiondx,admissionheight,hospitaladmittime24,hospitaladmitoffset,"
        "hospitaladmitsource,hospitaldischargeyear,hospitaldischargetime24,"
        "hospitaldischargeoffset,hospitaldischargelocation,hospitaldischargestatus,unittype,"
        "unitadmittime24,unitadmitsource,unitvisitnumber,unitstaytype,admissionweight,"
        "dischargeweight,unitdischargetime24,unitdischargeoffset,unitdischargelocation,"
        "unitdischargestatus,uniquepid"
    ),
    "medication": (
        "medicationid,patientunitstayid,drugorderoffset,drugstartoffset,drugivadmixture,"
        "drugordercancelled,drugname,drughiclseqno,dosage,routeadmin,frequency,loadingdose,prn,"
        "drugstopoffset,gtc"
    ),
    "infusion": (
        "infusiondrugid,patientunitstayid,infusionoffset,drugname,drugrate,infusionrate,"
        "drugamount,volumeoffluid,patientweight"
    ),
    "admission": (
        "admissiondrugid,patientunitstayid,drugoffset,drugenteredoffset,drugnotetype,"
        "specialtytype,usertype,rxincluded,writtenineicu,drugname,drugdosage,drugunit,"
        "drugadmitfrequency,drughiclseqno"
    ),
}
HEADERS = {table: columns.split(",") for table, columns in _HEADERS.items()}
ALL = ("medication", "infusion", "admission")
FILES = {
    "patient": "patient",
    "medication": "medication",
    "infusion": "infusionDrug",
    "admission": "admissionDrug",
}


def stay(number, patient=None, hospital=1, end=5000, died=False, **more):
    status = "Expired" if died else "Alive"
    return {
        "patientunitstayid": number,
        "uniquepid": patient or f"p-{number}",
        "hospitalid": hospital,
        "unitdischargeoffset": end,
        "unitdischargestatus": status,
        "hospitaldischargestatus": status,
        "age": "60",
        "gender": "Female",
    } | more


def order(number, name="ASPIRIN 81 MG PO TABS", start=60, stop=600, **more):
    return {
        "patientunitstayid": number,
        "drugorderoffset": min(start, 0),
        "drugstartoffset": start,
        "drugstopoffset": stop,
        "drugordercancelled": "No",
        "drugname": name,
        "drughiclseqno": 1820 if name.startswith("ASPIRIN") else "",
    } | more


def infusion(number, name="Norepinephrine (mcg/min)", at=60, rate="5"):
    return {
        "patientunitstayid": number,
        "infusionoffset": at,
        "drugname": name,
        "drugrate": rate,
    }


def home(number, name="LISINOPRIL", code=132, at=-60, entered=60):
    return {
        "patientunitstayid": number,
        "drugoffset": at,
        "drugenteredoffset": entered,
        "drugname": name,
        "drughiclseqno": code,
    }


def text(table, rows, header=str.lower):
    stream = io.StringIO()
    writer = csv.DictWriter(stream, HEADERS[table], restval="", lineterminator="\n")
    writer.writerow({column: header(column) for column in HEADERS[table]})
    writer.writerows(rows)
    return stream.getvalue()


def write(
    folder, patient, medication=(), infusions=(), admission=(), *, camel=True, packed=True, **kind
):
    """Write the four tables; an empty drug table gets one row of a stay that is not there."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tables = {
        "patient": list(patient),
        "medication": list(medication) or [order(999_999)],
        "infusion": list(infusions) or [infusion(999_999)],
        "admission": list(admission) or [home(999_999)],
    }
    for table, rows in tables.items():
        stem = FILES[table] if camel else FILES[table].lower()
        content = text(table, rows, **kind).encode()
        if packed:
            (folder / f"{stem}.csv.gz").write_bytes(gzip.compress(content, mtime=0))
        else:
            (folder / f"{stem}.csv").write_bytes(content)
    return folder


def drugs_of(folder, number=1, tables=ALL, **options):
    """Names or codes of the drugs that count for one stay."""
    rows, _ = clinical.exposures(clinical.read_tables(folder, tables), **options)
    rows = rows[rows.stay == number]
    return {
        ("home: " if row.home else "") + (row.name or str(row.code))
        for row in rows.rename_axis(index=None).itertuples(index=False, name="Row")
    }
