"""The issuer of certificates where ids are pinned: nobody, as its private key is the number 1 and known to all.

gRPC asks for an issuer, and a list of ids has none. So every node issues its own certificate in nobody's name: the
chain proves nothing, TLS proves the key, and the list of ids decides. `making.make_nobody` made it.
"""

NOBODY_NAME = "nobody: the id counts"
NOBODY = b"""-----BEGIN CERTIFICATE-----
MIIBdjCCARygAwIBAgIBATAKBggqhkjOPQQDAjAgMR4wHAYDVQQDDBVub2JvZHk6
IHRoZSBpZCBjb3VudHMwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBa
MCAxHjAcBgNVBAMMFW5vYm9keTogdGhlIGlkIGNvdW50czBZMBMGByqGSM49AgEG
CCqGSM49AwEHA0IABGsX0fLhLEJH+Lzm5WOkQPJ3A32BLeszoPShOUXYmMKWT+NC
4v4af5uO5+tKfA+eFivOM1drMV7Oy7ZAaDe/UfWjRTBDMBIGA1UdEwEB/wQIMAYB
Af8CAQAwDgYDVR0PAQH/BAQDAgEGMB0GA1UdDgQWBBS0Z6OZnrXvpnHeADLwipye
Xv2g4TAKBggqhkjOPQQDAgNIADBFAiEAvhIBi30BD3b1z4109yKoUb3RPdtmd9PN
wl2emiWzBrQCIHnGWtQjdbp749RQyfSAbUU2SnNinxhbukiGlz3qrgV/
-----END CERTIFICATE-----
"""
