#!/bin/sh
# Prints assembly that embeds the given files: table `web_file_table` of {name, start, end}, ended by a null name.
# src/server/web.h declares it.
echo '.section .rodata'
i=0
for f in "$@"; do
    echo ".balign 16"
    echo "data_$i: .incbin \"$f\""
    echo "end_$i: .byte 0"
    echo "name_$i: .asciz \"$(basename "$f")\""
    i=$((i + 1))
done
echo '.section .data.rel.ro,"aw"'
echo '.balign 8'
echo '.globl web_file_table'
echo 'web_file_table:'
j=0
while [ $j -lt $i ]; do
    echo ".quad name_$j, data_$j, end_$j"
    j=$((j + 1))
done
echo '.quad 0, 0, 0'
echo '.section .note.GNU-stack,"",@progbits'
