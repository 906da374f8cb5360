# Leaves out what stands between BEGIN SOLUTION and END SOLUTION; lines in between that begin with
# "//-" are handed out instead, and if there are none, "// your code".
/BEGIN SOLUTION/ { inside = 1; given = 0; next }
/END SOLUTION/ {
    if (!given) print "    // your code"
    inside = 0
    next
}
inside && /^ *\/\/- / { sub(/\/\/- /, ""); given = 1; print; next }
!inside
